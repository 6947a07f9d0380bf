import pytest
from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.analyzer import Analyzer


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
    assert Analyzer("english", ["the"], shortest=2)("The x of THE y") == ["of"]
