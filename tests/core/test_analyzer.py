import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.analyzer import Analyzer, language_of


@pytest.mark.parametrize(
    ("language", "text", "stems"),
    [
        ("english", "The cats' HOUSES, 2024", ["the", "cat", "hous", "2024"]),
        ("german", "Die Häuser der Straße", ["die", "haus", "der", "strass"]),
        ("none", "cafe\u0301 CAFÉS", ["café", "cafés"]),  # one accent, two ways to write it
        ("none", "हिन्दी में", ["हिन्दी", "में"]),  # vowels are marks, which \w lacks
        ("none", "東京都 3年", ["東京", "京都", "3", "年"]),
        ("none", "snake_case", ["snake_case", "snake", "case"]),
        ("none", "HTTPServer.readLine", ["httpserver.readline", "http", "server", "read", "line"]),
        ("none", "__init__ mRNA", ["init", "mrna"]),
        ("english", " .,_ ", []),
    ],
)
def test_words_of_any_script(language: str, text: str, stems: list[str]) -> None:
    assert Analyzer(language)(text) == stems


@given(st.text(), st.text())
def test_texts_side_by_side(first: str, second: str) -> None:
    analyzer = Analyzer()

    assert analyzer(f"{first}\n{second}") == analyzer(first) + analyzer(second)


def test_left_out_words() -> None:
    words = Analyzer("english", ["the"], split_letters=False)

    assert words("The vitamin C of THE type 2") == ["vitamin", "c", "of", "type", "2"]
    assert words("it's l'eau, IL6 and Earth’s O’Brien") == [
        "it", "eau", "il6", "il", "and", "earth", "brien",
    ]  # fmt: skip
    assert words.written("Vitamin C, not the cat's") == {
        "vitamin": "Vitamin", "c": "C", "not": "not", "cat": "cat",
    }  # fmt: skip


TEXTS = {
    "arabic": "ذهب الولد إلى المدرسة في الصباح، ولم يجد أحدا من أصدقائه على الطريق",
    "czech": "Nikdo není doma, protože se šli dívat na řeku, která je za městem, jako kdysi",
    "danish": "Det er ikke til at sige, om de kommer, og vi har ikke hørt fra dem",
    "english": "The quick brown fox is one of the animals that jump over a lazy dog",
    "finnish": "Hän sanoi, että se on totta, mutta kukaan ei ollut siellä kun hän tuli",
    "french": "Les enfants jouent dans la rue, et une femme les regarde sur le pont",
    "german": "Die Kinder und der Vater sind nicht auf der Straße, das ist von Vorteil",
    "greek": "Το παιδί πήγε στο σχολείο και δεν βρήκε τους φίλους του από την πόλη",
    "hindi": "लड़का सुबह स्कूल में गया और उसने रास्ते पर किसी को नहीं देखा",
    "polish": "Kiedy przyszedłem do domu, nie było nikogo, bo wszyscy poszli na spacer",
    "portuguese": "Os meninos foram para a escola com uma bola que não era do professor",
    "russian": "Когда я пришёл домой, там никого не было, и я пошёл на улицу в школу",
    "spanish": "El niño fue con los amigos por una calle que va del puerto a las casas",
    "swedish": "Det är inte som jag trodde, och den som kom för att hjälpa av godhet",
    "turkish": "Çocuk bir okul için çok çalıştı ve bu yüzden ile daha iyi olarak görüldü",
}


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_is_that_of_the_frequent_words(language: str) -> None:
    assert language_of([TEXTS[language]]) == language


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Tôi không có thời gian cho các bạn trong một ngày và những người của tôi", "Vietnamese"),
        ("Коли я прийшов додому, там нікого не було, і я пішов на вулицю та до школи", "Ukrainian"),
        (
            "Die seun het na die skool gegaan en hy wat nie daar was nie, het vir hulle gewag",
            "Afrikaans",
        ),
        ("Mae'r bachgen wedi mynd i'r ysgol ac mae ei ffrindiau yn aros ar y bont", "Welsh"),
        (
            "Strákurinn fór í skólann og það er ekki vitað um vini sem hann hitti við ána",
            "Icelandic",
        ),
        ("Il-pajjiż jinsab fil-Baħar u l-belt hija Valletta, il-gvern qal li se jibda", "Maltese"),
        ("Ayiti se yon peyi ki nan Karayib la, e moun yo pale kreyòl ak franse", "Haitian"),
        ("Kerajaan ialah pihak yang terdiri daripada rakyat dan tidak akan kalah", "Malay"),
        ("ბიჭი დილით სკოლაში წავიდა და გზაში არავინ შეხვდა", "no language that is known"),
    ],
)
def test_words_of_a_language_without_a_stemmer_are_taken_whole(text: str, named: str) -> None:
    with pytest.warns(UserWarning, match=f"{named}.*does not stem"):
        assert language_of([text]) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "Dnes ráno jsme šli do města koupit chléb a mléko, ale obchod byl na náměstí zavřený",
        "Ela comprou pão e leite; depois fomos à praia, com sol e sem vento, tomar banho",
        "De kinderen speelden buiten en aten een appel",
    ],
)
def test_the_language_of_few_frequent_words_is_unsure(text: str) -> None:
    with pytest.warns(UserWarning, match="too few frequent words to be sure.*does not stem"):
        assert language_of([text]) == "none"


@pytest.mark.parametrize("text", ["", "def parse(line): return int(line)", "東京都 2024", "naïve"])
def test_texts_without_frequent_words_are_as_english(text: str) -> None:
    assert language_of([text, "readlines open close file list number class module"]) == "english"
