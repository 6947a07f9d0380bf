"""The page of `m2dr serve`, driven in headless Chromium."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from http_serving import Server, World
from hypothesis import example, given
from hypothesis import strategies as st
from page_server import FakeServer, running, served_index

import m2dr
from m2dr.core.records import Document
from m2dr.serve.service import example_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
EVIL = "<img src=x onerror='document.title=\"run\"'><script>document.title='run'</script>"
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Headless Chromium of this machine."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"There is no browser: none of {', '.join(NAMES)} is on the PATH.")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with running(FakeServer()) as server:
        yield server


@pytest.fixture
def opened(browser: "Browser", fake: FakeServer) -> Iterator[Open]:
    """Open the page of a server; at the end no script has failed and no other host was asked."""
    contexts, wrong, hosts = [], [], set()

    def open_page(address: str = "", url: str = "", **options: object) -> "Page":
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: hosts.add(asked.url.split("/")[2]))
        page.goto(f"{url or fake.url}{address}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    known = re.compile(r"the server responded with a status of 4|ERR_CONNECTION_REFUSED")
    assert not [each for each in wrong if not known.search(each)]
    assert len(hosts) == 1


def titles(page: "Page", ranking: str = "#hits") -> list[str]:
    return page.locator(f"{ranking} .title").all_inner_texts()


def number(page: "Page", name: str) -> str:
    return page.locator(f"#{name} b").inner_text()


def settled(page: "Page", cut: str) -> None:
    """Wait for the answer of a cut."""
    page.get_by_role("heading", name=f"This cut, {cut}", exact=True).wait_for()
    page.wait_for_function("document.querySelector('#results').ariaBusy !== 'true'")


def test_typing_and_sliders(opened: Open) -> None:
    page = opened()
    page.get_by_role("searchbox", name="Query").fill("ducks")
    settled(page, "L2D128")
    first = titles(page), number(page, "overlap"), number(page, "adds"), number(page, "bytes")

    page.get_by_role("slider", name="Query layers").fill("3")
    settled(page, "L6D128")
    deeper = titles(page), number(page, "overlap"), number(page, "adds"), number(page, "bytes")
    page.get_by_role("slider", name="Dims").fill("2")
    settled(page, "L6D384")

    assert all(title.endswith("of ducks") for title in first[0])
    assert (first[2], first[3]) == ("40.1 M", "512")
    assert deeper[0] != first[0]
    assert (deeper[2], deeper[3]) == ("120 M", "512")
    assert number(page, "bytes") == "1,536"
    assert number(page, "overlap") == "10 of 10"
    assert number(page, "quality") == ".9840"
    assert titles(page) == titles(page, "#full-hits")
    assert page.locator("#times tbody tr").first.inner_text().split()[2:6] == (
        ["0.10", "6.20", "3.84", "10.1"]
    )


def test_figures_are_of_the_ranking_that_is_shown(opened: Open, fake: FakeServer) -> None:
    """What m2dr evaluate measured is that of the server's own weights, without a filter."""
    fake.indexes = [served_index(fields=["year"]), served_index("mixed", hybrid=0.4)]

    def told(page: "Page") -> tuple[str, str]:
        about = page.locator("#map-about").inner_text()
        return number(page, "quality"), about.removesuffix(
            "Choose a cut: layers down, dims across."
        )

    page = opened("#q=ducks&layer=6&dim=384")
    assert told(page) == (".9840", "")
    page.get_by_label("Rank by BM25 too").check()
    assert told(page) == ("–", "Measured without BM25: ")
    page.get_by_label("Filter", exact=True).fill("year = 1")
    assert told(page) == ("–", "Measured without BM25 and without a filter: ")
    page.get_by_label("Index", exact=True).select_option("mixed")
    assert told(page) == (".9840", "")
    page.get_by_label("Rank by BM25 too").uncheck()
    assert told(page) == ("–", "Measured with BM25: ")


def test_real_index(opened: Open, server: Server, world: World) -> None:
    def docids(page: "Page", ranking: str) -> list[str]:
        rows = page.locator(f"{ranking} > li[data-docid]")
        found: list[str] = rows.evaluate_all("rows => rows.map(row => row.dataset.docid)")
        return found

    index = m2dr.open_index(
        str(world.corpus), model=str(world.model), root=world.root, device="cpu", dtype="fp32"
    )

    def expected(query: str, layer: int, dim: int) -> list[str]:
        return [hit.docid for hit in index.search(query, layer=layer, dim=dim, k=10).hits]

    page = opened("/#q=alpha+beta&layer=1&dim=16", url=server.url)
    settled(page, "L1D16")
    assert docids(page, "#hits") == expected("alpha beta", 1, 16)
    page.get_by_role("searchbox", name="Query").fill("gamma delta")
    page.get_by_role("slider", name="Query layers").press("Home")
    settled(page, "L0D16")
    page.get_by_role("slider", name="Dims").press("End")
    settled(page, "L0D32")

    assert docids(page, "#hits") == expected("gamma delta", 0, 32)
    assert docids(page, "#full-hits") == expected("gamma delta", 4, 32)
    assert number(page, "bytes") == "128"


def test_keyboard(opened: Open) -> None:
    page = opened()
    page.get_by_text("Write a query").wait_for()
    keys = page.keyboard
    keys.press("/")
    keys.type("a/b")
    keys.press("Enter")
    settled(page, "L2D128")
    for _ in range(12):
        keys.press("Tab")
        if page.evaluate("document.activeElement.id") == "layer":
            break
    keys.press("ArrowRight")
    settled(page, "L4D128")
    keys.press("Tab")
    keys.press("ArrowLeft")
    settled(page, "L4D32")
    keys.press("Tab")
    keys.press("ArrowDown")
    settled(page, "L6D32")
    keys.press("End")
    settled(page, "L6D384")
    focused = page.evaluate("document.activeElement.ariaLabel")
    keys.press("Tab")
    keys.press("Enter")

    assert focused == "layer 6, dim 384: nDCG@10 .9840"
    assert page.locator("#grid [aria-selected=true]").count() == 1
    assert page.get_by_role("button", expanded=True).count() == 1
    assert page.get_by_text("Second line.").first.is_visible()
    assert titles(page)[0].endswith("of a/b")


def test_late_answer(opened: Open, fake: FakeServer) -> None:
    fake.delays = {"slow": 1.0}
    page = opened("#q=slow&layer=2&dim=128")
    page.get_by_role("progressbar", name="Searching").wait_for()
    page.get_by_role("searchbox", name="Query").fill("quick")
    settled(page, "L2D128")
    page.wait_for_timeout(1200)

    assert all(title.endswith("of quick") for title in titles(page))


def test_address_of_a_cut(opened: Open, fake: FakeServer) -> None:
    fake.indexes = [served_index(), served_index("papers", fields=["year"])]
    page = opened("#filter=of+an+index+without+fields")
    page.get_by_label("Index", exact=True).select_option("papers")
    page.get_by_label("Filter").fill("year > 2020 & x=1")
    page.get_by_label("Mix words into queries").check()
    page.get_by_role("searchbox", name="Query").fill("100 % of ducks & #geese")
    page.get_by_role("gridcell", name="layer 4, dim 32").click()
    settled(page, "L4D32")
    again = opened(page.url.removeprefix(fake.url))
    settled(again, "L4D32")

    assert "without" not in json.dumps(fake.searches)
    *_, last = fake.searches
    assert {name: last[name] for name in ("query", "filter", "index", "layer", "hybrid", "query_mix")} == {
        "query": "100 % of ducks & #geese", "filter": "year > 2020 & x=1", "index": "papers",
        "layer": 4, "hybrid": False, "query_mix": True,
    }  # fmt: skip
    assert again.get_by_label("Filter").input_value() == "year > 2020 & x=1"


def test_bars_say_which_words_found_a_document(opened: Open, fake: FakeServer) -> None:
    page = opened("#q=two+<b>words</b>&layer=2&dim=32")
    settled(page, "L2D32")
    assert not page.locator(".why").count()
    assert "explain" not in fake.searches[-1]

    page.get_by_label("Say which words found them").check()

    rows = page.locator("#hits > li").first.locator(".why li")
    page.locator("#hits .why").first.wait_for()
    assert rows.all_inner_texts() == [
        "two\n0.500", "<b>words</b>\n0.500", "(rest of the query)\n-0.100"
    ]  # fmt: skip
    lengths = rows.locator(".bar").evaluate_all("bars => bars.map(b => b.style.cssText)")
    assert [float(each.split(":")[1].strip(" ;")) for each in lengths] == [1, 1, 0.2]
    assert fake.searches[-1]["explain"]
    assert "explain=1" in page.url


def test_no_text_is_html(opened: Open, fake: FakeServer) -> None:
    fake.title = EVIL
    fake.indexes = [served_index(EVIL), served_index(f"2{EVIL}", fields=[EVIL])]
    fake.refusals = {"no": (422, {"error": {"message": EVIL}})}
    page = opened("#q=ducks&layer=2&dim=128")
    settled(page, "L2D128")
    shown = titles(page)
    page.get_by_role("button", name=EVIL).first.click()
    page.get_by_role("searchbox", name="Query").fill("no")
    said = page.get_by_role("alert").locator("span").inner_text()

    assert shown[0].startswith(EVIL)
    assert said == EVIL
    assert page.locator("img, script:not([src])").count() == 0
    assert page.title().startswith("m2dr")


def test_token(opened: Open, fake: FakeServer) -> None:
    fake.token = "secret words"  # of this test alone
    page = opened("#q=ducks&layer=2&dim=128")
    page.get_by_label("This server asks for a token").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_label("The token is not that of this server").fill("secret words")
    page.keyboard.press("Enter")

    settled(page, "L2D128")
    assert "secret" not in page.url
    shown = page.locator("#curl").text_content() or ""
    assert "Bearer $TOKEN" in shown
    assert "secret" not in shown


@given(st.text(), st.text())
@example("A title of words", "")
@example("io.readline", "Line ends\nare kept. More follows.")
def test_example_is_a_phrase(title: str, text: str) -> None:
    found = example_of(Document("1", text, title))

    assert len(found) <= 64
    assert not found or 3 <= len(found.split()) <= 12
    assert not re.search(r"[\n<>=(){}]", found)
    assert " ".join(f"{title} {text}".split()).find(found) >= 0
