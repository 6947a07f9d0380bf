from m2dr.evaluate.html import Cell, bullets, details, facts, paragraphs, table

EVIL = "<b onclick='x'>&\""
SAFE = "&lt;b onclick=&#x27;x&#x27;&gt;&amp;&quot;"


def test_whatever_is_shown_is_escaped() -> None:
    cell = Cell(EVIL, 0.5, strong=True, small=EVIL, title=EVIL)
    made = table(EVIL, [EVIL], [(EVIL, [cell])]) + facts(EVIL, {EVIL: EVIL})
    made += (
        paragraphs([EVIL]) + bullets([EVIL]) + details(EVIL) + table("", [], [("", [Cell(EVIL)])])
    )

    assert EVIL not in made
    assert "<b " not in made
    assert made.count(SAFE) == 15


def test_what_no_page_can_hold_is_marked() -> None:
    made = paragraphs(["a\x1b[2Jb\x00\ud800\x9b c\u00a0d"], title="\x1b]0;x")

    assert made == '<p title="\ufffd]0;x">a\ufffd[2Jb\ufffd\ufffd\ufffd c\u00a0d</p>'


def test_heat_is_a_share_that_the_style_sheet_mixes() -> None:
    assert 'style="--heat:25%"' in table("c", ["h"], [("r", [Cell("x", 0.25)])])


def test_what_is_empty_is_left_out() -> None:
    assert bullets([]) == facts("c", {}) == paragraphs([]) == ""
