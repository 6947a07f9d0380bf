"""Take the picture of docs/serve.md from the page of a running `m2dr serve`.

    m2dr serve --corpus pydocs:stdlib
    python scripts/page_pictures.py http://127.0.0.1:8080/

Needs playwright and a Chromium on the PATH. Pictures are reduced to 256 colours, which
keeps them below 150 KB.
"""

import argparse
import shutil
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
SHOWN = "#q=read+a+file+line+by+line&layer=2&dim=128"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# By file, the width and height of the window, and pixels of the picture per pixel of the page.
PICTURES = {"page.png": (1280, 1000, 1)}
SETTLE_MS = 500  # rows have stopped moving by then


def take(browser: Browser, address: str, path: Path) -> None:
    """Write the picture of a window."""
    width, height, scale = PICTURES[path.name]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        device_scale_factor=scale,
        color_scheme="light",
        reduced_motion="reduce",
    )
    page = context.new_page()
    # The first answers of a server are slow; the last one is that of a server at work.
    for layer in (6, 0, 4, 1, 2):
        page.goto(f"{address}{SHOWN.replace('layer=2', f'layer={layer}')}")
        page.get_by_role("heading", name=f"This cut, L{layer}D128").wait_for()
        page.wait_for_timeout(SETTLE_MS)
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    colours = picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours.save(path, optimize=True)
    context.close()


def main(address: str) -> None:
    """Take all pictures of the page at an address."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit(f"There is no browser: none of {', '.join(BROWSERS)} is on the PATH.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name in PICTURES:
            take(browser, address, DOCS / name)
            sys.stdout.write(f"{DOCS / name}: {(DOCS / name).stat().st_size:,} bytes\n")
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("address", help="of the running server")
    main(parser.parse_args().address)
