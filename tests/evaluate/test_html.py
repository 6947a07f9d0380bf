import pytest

from m2dr.core.records import Cut
from m2dr.evaluate.grid import Grid
from m2dr.evaluate.html_report import PageContent, PlaceContent, html_page
from m2dr.evaluate.results import ModelResult

EVIL = "<b onclick='x'>&\"{{ 7 * 7 }}{% x %}"
SAFE = "&lt;b onclick=&#39;x&#39;&gt;&amp;&#34;{{ 7 * 7 }}{% x %}"


def page(text: str, tmp_path, facts: bool = True) -> str:
    """A page that shows `text` wherever it can stand; with `facts`, in every list and table."""
    held = (text,) if facts else ()
    cells = {Cut(2, 8): {text: 0.25}, Cut(2, 16): {text: 0.0}, Cut(4, 16): {text: 1.0}}
    grid = Grid(text, text, text, 3, cells, held, text, held)
    result = ModelResult(tmp_path, grid, None, (), None)
    facts_of = dict.fromkeys(held, text)
    return html_page(
        PageContent(
            title=text,
            places=(PlaceContent(text, (result,), text, (), held),),
            figures=(),
            models={text: {text: facts_of}},
            versions=facts_of,
            commands=held,
            written=text,
            notes=held,
        )
    )


def test_whatever_is_shown_is_escaped(tmp_path) -> None:
    made = page(EVIL, tmp_path)

    assert EVIL not in made
    assert "<b " not in made
    assert made.count(SAFE) == 32


@pytest.mark.parametrize("kind", ["text", "attribute"])
def test_what_no_page_can_hold_is_marked(kind: str, tmp_path) -> None:
    made = page("a\x1b[2Jb\x00\ud800\x9b c\u00a0d", tmp_path)

    before, after = {"text": ("<h3>", "</h3>"), "attribute": ('aria-label="', ":")}[kind]
    assert f"{before}a\ufffd[2Jb\ufffd\ufffd\ufffd c\u00a0d{after}" in made
    assert not set("\x1b\x00\ud800\x9b") & set(made)


def test_heat_is_a_share_that_the_style_sheet_mixes(tmp_path) -> None:
    assert 'class="heat" style="--heat:25%">.2500</td>' in page("m", tmp_path)


def test_what_is_empty_is_left_out(tmp_path) -> None:
    made = page("m", tmp_path, facts=False)

    assert "<pre" not in made
    assert made.count("<table") == 1
    assert made.count("<ul") == 2  # contents and summary
    assert "No check failed." in made


def test_a_page_begins_with_its_document_type(tmp_path) -> None:
    assert page("m", tmp_path).startswith("<!DOCTYPE html>\n<html lang=")
