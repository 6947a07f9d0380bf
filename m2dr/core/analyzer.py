"""Texts as word stems, in any script."""

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from m2dr.core.errors import UserError, nearest

# Letters and digits, and the marks of a letter, which \w lacks: accents, vowels of Indic scripts.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u0900-\u0963\u0971-\u0df3\u0e31-\u0e3a\u0e47-\u0e4e\u0eb1-\u0ebc\u0ec8-\u0ece\u0f71-\u0f87"
    "\u0f90-\u0fbc\u102b-\u103e\u1056-\u109d\u17b4-\u17d3\u200c\u200d\u3099\u309a"
)
_LETTER = rf"(?:[^\W_]|[{_MARKS}])"
# A word, or an identifier of words that dots and underscores join.
_WORD = re.compile(rf"{_LETTER}+(?:[._]+{_LETTER}+)*")
# The same without a letter that an apostrophe splits off, as of "it's" and "l'eau".
_WHOLE = re.compile(rf"(?!(?<=\w['’])[^\W\d_]\b|[^\W\d_]['’]\w){_WORD.pattern}")
# The words of an identifier, two letters each or joined by dots and underscores: no mRNA is cut;
# and letters beside digits, as in IL6.
_PART = re.compile(
    r"[._]+|(?<=[a-z][a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z][a-z])"
    r"|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])"
)
# Scripts without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, kana, and Han.
_CHARS = (
    "\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"([{_CHARS}]+)")
# What white space parts, and in scripts without any two characters, with the marks behind them.
_PLACE = re.compile(rf"[{_CHARS}]{{1,2}}[^\w\s]*|[^\s{_CHARS}]+")


def word_places(text: str) -> list[tuple[int, int]]:
    """Return where each word of a text begins and ends; without spaces, each two characters.

    >>> word_places("a file"), word_places("東京都、")
    ([(0, 1), (2, 6)], [(0, 2), (2, 4)])
    """
    return [match.span() for match in _PLACE.finditer(text)]


def cut_words(text: str, places: Sequence[tuple[int, int]]) -> str:
    """Return a text from the first to the last of some neighbouring places, each space single."""
    return " ".join(text[places[0][0] : places[-1][1]].split()) if places else ""


class Analyzer:
    """Splits texts into the stems of their words, in lower case.

    An identifier of code gives its words and itself, and a script without spaces gives each two
    neighbouring characters.

    >>> Analyzer()("Parsing os.path, readLines")
    ['pars', 'os.path', 'os', 'path', 'readlin', 'read', 'line']
    >>> Analyzer()("東京都 2024")
    ['東京', '京都', '2024']

    Args:
        language: of Snowball's stemmer, such as "english" or "german"; "none" for whole words.
        stop_words: words to leave out, in lower case.
        split_letters: whether single letters and digits that apostrophes or identifiers split off,
            as of "it's" and "IL6", are words.

    Raises:
        UserError: Snowball has no stemmer of that language.
    """

    def __init__(
        self, language: str = "english", stop_words: Iterable[str] = (), split_letters: bool = True
    ) -> None:
        self.language = language
        self._stem = _stemmer(language)
        self._stop_words, self._shortest = frozenset(stop_words), 1 if split_letters else 2
        self._words = (_WORD if split_letters else _WHOLE).findall
        self._stems: dict[str, list[str]] = {}  # by word, as texts repeat theirs

    def __call__(self, text: str) -> list[str]:
        """Return the stems of a text in order, repeated ones too."""
        if not text.isascii():
            text = unicodedata.normalize("NFKC", text)
        stems: list[str] = []
        for word in self._words(text):
            known = self._stems.get(word)
            if known is None:
                known = self._stems[word] = [stem for stem, _ in self._analyzed(word)]
            stems += known
        return stems

    def written(self, text: str, limit: int | None = None) -> dict[str, str]:
        """Return the first stems of a text, each as it is written there; forms joined by slashes.

        >>> Analyzer().written("Parsing parsed files")
        {'pars': 'Parsing/parsed', 'file': 'files'}
        """
        forms: dict[str, dict[str, str]] = {}
        words = self._words(unicodedata.normalize("NFKC", text))
        for stem, form in [pair for word in words for pair in self._analyzed(word)][:limit]:
            forms.setdefault(stem, {}).setdefault(form.lower(), form)
        return {stem: "/".join(each.values()) for stem, each in forms.items()}

    def _analyzed(self, word: str) -> list[tuple[str, str]]:
        """Return the stems of a word, each with what it is the stem of."""
        if _UNSPACED.search(word):
            pieces = [piece for piece in _UNSPACED.split(word) if piece]
            if len(pieces) > 1:
                words = [word for piece in pieces for word in _WORD.findall(piece)]
                return [pair for word in words for pair in self._analyzed(word)]
            return [(word[at : at + 2],) * 2 for at in range(max(len(word) - 1, 1))]
        parts = _PART.split(word)
        return [
            (self._stem(each.lower()), each)
            for each in ([word, *parts] if len(parts) > 1 else parts)
            if (len(parts) == 1 or len(each.lower()) >= self._shortest)
            and each.lower() not in self._stop_words
        ]


@lru_cache
def _stemmer(language: str) -> Any:  # a function of a word
    if language == "none":
        return str
    import Stemmer

    if not has_stemmer(language):
        languages = ["none", *Stemmer.algorithms()]
        raise UserError(f"There is no stemmer of {language!r}. {nearest(language, languages)}")
    return Stemmer.Stemmer(language).stemWord


# Frequent words of languages, the first of which counts where two have as many. Those without a
# stemmer of Snowball are here because their texts would be taken for their neighbours'.
_FREQUENT = {
    "danish": "og er det ikke af på til som med",
    "dutch": "het een van niet dat voor zijn met aan",
    "english": "the of and is that this with from are",
    "finnish": "ja on ei että se oli kun mutta myös",
    "french": "le les des est une dans qui pour sur",
    "german": "der die und das nicht ist mit von auch",
    "hungarian": "és hogy nem az egy meg csak volt ez",
    "italian": "il che di è della non sono gli una",
    "norwegian": "og ikke av det på som til fra være",
    "portuguese": "não uma os que do da em com para",
    "romanian": "și nu în este care cu sau pe fost",
    "russian": "и в не на что с как это по",
    "spanish": "el los las que una por con del es",
    "swedish": "och att det inte som är av för den",
    "turkish": "ve bir bu için ile olarak daha çok gibi",
    "arabic": "في من على إلى أن هذا هذه التي عن ما لا",
    "armenian": "և է են որ այս համար մի հետ կամ",
    "basque": "eta da ez bat dira du izan hau den baina",
    "bulgarian": "и в не на да се от са или този за е",
    "catalan": "amb els que una del dels és al són per",
    "croatian": "i je u na se da su nije koji ili kao što za",
    "czech": "je že na se jako nebo není pro při který být",
    "esperanto": "kaj estas ne ke aŭ tiu kiu al kun por",
    "estonian": "ja on ning või kui see oli mis ka et",
    "greek": "και το της να του δεν είναι για με την από",
    "hebrew": "את של לא על הוא או זה אם עם היא",
    "hindi": "के में की है से का और को पर नहीं",
    "indonesian": "yang dan tidak untuk dengan dari ini adalah pada akan",
    "irish": "agus an na ar ní leis chun bhfuil go nach",
    "latvian": "un ir nav no ar uz vai par ka kas",
    "lithuanian": "ir yra kad ne kaip arba iš šis tai nėra",
    "nepali": "छ र को मा लागि यो गर्न छैन पनि हो",
    "persian": "در به از که این را با است برای آن",
    "polish": "nie jest się na do że lub dla przez oraz jak",
    "serbian": "и је у на се да су није који или као што за",
    "slovak": "je že na sa ako alebo nie pre pri ktorý byť",
    "slovenian": "je in na se da so ni ki ali kot za",
    "tamil": "மற்றும் இந்த ஒரு என்று இல்லை அல்லது உள்ள என்ற",
    "ukrainian": "в не на що з і та до як це у",
    "urdu": "کے میں کی ہے سے کا اور کو پر نہیں",
    "vietnamese": "của và là không các được trong cho một có",
    "afrikaans": "die van het nie wat vir met sy hulle hy",
    "albanian": "të dhe në një për që është me nga janë",
    "galician": "unha é dos cidades con moitos non máis pola nos",
    "hausa": "da na ba ya ta ce wani cikin kuma domin",
    "icelandic": "og að er ekki það sem til við um var",
    "latin": "et est non ad ut cum sed quae qui atque",
    "swahili": "na ya wa ni kwa katika za hiyo kuwa cha",
    "tagalog": "ang ng sa mga ay na at hindi ito para",
    "welsh": "yn y yr ac ar mae wedi oedd bod ei",
    "azerbaijani": "və bu üçün ilə bir də daha olan kimi ki",
    "breton": "ar an ha eo en er da gant ur zo",
    "haitian": "nan ak pou yo li ki te yon se la moun",
    "javanese": "ing lan kang sing iku dadi saka ana marang",
    "kurdish": "û di ku ji bi li de jî ew ev",
    "luxembourgish": "an de vun déi den ass fir mat op datt",
    "malay": "yang dan tidak untuk dengan ini pada akan ialah daripada kerana",
    "maltese": "li u ta il hija huma minn għal fil kien tal",
    "occitan": "e lo los las es amb dins que una del dels",
    "scottish gaelic": "tha agus an air na gu bha am ann aig",
    "uzbek": "va bilan uchun bu bir ham edi ular bo",
    "zulu": "ukuthi futhi noma uma kanye ngoba abantu kodwa kusho lapho",
}
_ENOUGH = 0.02  # of the words are frequent ones of a language, where the texts are of it
_FEWEST = 3  # of them, where it is not English; neighbours share some
_ACCENTED = 0.2  # of the words of English texts are not in plain letters, at most


def language_of(texts: Iterable[str]) -> str:
    """Return the language whose frequent words are most of the words of some texts.

    Where they are fewer than 2 % of the words in every language it is English, if nearly all words
    are in its letters, as in code and in names. It is "none", with a warning, where Snowball has no
    stemmer of the language, or fewer than three of its frequent words are there.
    """
    split = Analyzer("none")
    counts = Counter(word for text in texts for word in split(text))
    shares = {name: sum(counts[word] for word in own.split()) for name, own in _FREQUENT.items()}
    best = max(shares, key=shares.__getitem__)
    spaced = {word: n for word, n in counts.items() if not _UNSPACED.search(word)}
    others = sum(count for word, count in spaced.items() if not word.isascii())
    if shares[best] >= max(_ENOUGH * counts.total(), 1):
        if best != "english" and shares[best] < _FEWEST:
            what = f"have too few frequent words to be sure that they are {best.title()}"
        elif has_stemmer(best):
            return best
        else:
            what = f"seem to be {best.title()}, of which there is no stemmer"
    elif others <= _ACCENTED * sum(spaced.values()):
        return "english"
    else:
        what = "are of no language that is known by its frequent words"
    warnings.warn(
        f"The texts {what}: m2dr does not stem their words; --language names another language.",
        UserWarning,
        stacklevel=2,
    )
    return "none"


def has_stemmer(language: str) -> bool:
    """Return whether Snowball has a stemmer of a language."""
    import Stemmer

    return language in Stemmer.algorithms()
