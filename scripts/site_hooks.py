"""What mkdocs does besides: pages made from the code, and links to files outside docs/.

A page of docs/ links to benchmarks, configs and source files by their place in the repository,
where the links work too. On the site each such file is a page of its own.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # pages of commands are those of this copy of m2dr
import command_pages  # noqa: E402

DOCS = "docs"
FILES = "files"  # where pages of source files are
OWN = {"CHANGELOG.md": "changelog.md"}  # files of the repository with a page of another name
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCES = re.compile(r"(^```.*?^```$|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".txt": "text", ".ipynb": "json"}


def on_config(config: MkDocsConfig) -> None:
    """Fill the menus of commands, benchmarks and decisions."""
    uris = [command_pages.uri(path) for path, _ in command_pages.commands()]
    menus = {
        "Commands": [f"{command_pages.FOLDER}/index.md", *uris],
        "Benchmarks": ["benchmarks/index.md", *_names("benchmarks")],
        "Decisions": ["decisions/index.md", *_names("docs/decisions", "decisions")],
    }
    config.nav = _filled(config.nav, menus)


def _filled(nav: list[Any], menus: dict[str, list[str]]) -> list[Any]:
    """Return a nav with the menus of these names in place of empty ones."""
    filled: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((name, below),) = entry.items()
            if isinstance(below, list):
                entry = {name: _filled(below, menus) or menus[name]}
        filled.append(entry)
    return filled


def _names(folder: str, uri: str = "") -> list[str]:
    return [f"{uri or folder}/{path.name}" for path in sorted((ROOT / folder).glob("*.md"))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code and from files outside docs/."""
    for uri, text in _made():
        files.append(File.generated(config, uri, content=text))
    waiting = [
        *(("docs/" + page.src_uri, page.content_string) for page in files.documentation_pages()),
        *((f"benchmarks/{path.name}", "") for path in (ROOT / "benchmarks").glob("*.md")),
        *((name, "") for name in OWN),
    ]
    while waiting:
        origin, text = waiting.pop()
        if not origin.startswith(f"{DOCS}/"):
            uri = _uri(origin)
            if uri in files.src_uris:
                continue
            text = _content(origin)
            if isinstance(text, bytes):
                files.append(File.generated(config, uri, content=text))
                continue
            files.append(File.generated(config, uri, content=text))
        waiting += [(path, "") for path in _outside(origin, text)]
    return files


def _made() -> Iterator[tuple[str, str]]:
    """Yield the uri and the text of each page that no file holds."""
    yield f"{command_pages.FOLDER}/index.md", command_pages.overview()
    for path, command in command_pages.commands():
        yield command_pages.uri(path), command_pages.page(path, command)
    yield "first-steps.md", _notebook(ROOT / DOCS / "first-steps.ipynb")
    yield "decisions/index.md", _listing("docs/decisions", "Decisions", "What was chosen, and why.")
    told = "What was measured, against whom and how: a page per benchmark, with its command."
    yield "benchmarks/index.md", _listing("benchmarks", "Benchmarks", told)


def _listing(folder: str, title: str, told: str) -> str:
    pages = sorted((ROOT / folder).glob("*.md"))
    return f"# {title}\n\n{told}\n\n" + "".join(f"- [{_title(p)}]({p.name})\n" for p in pages)


def _title(path: Path) -> str:
    found = re.search(r"^# (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
    return found[1] if found else path.stem


def _notebook(path: Path) -> str:
    """Return a notebook as a page."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    parts = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    return "\n\n".join([*parts[:1], f"[The notebook]({path.name})", *parts[1:]]) + "\n"


def _uri(origin: str) -> str:
    """Return the place on the site of a path of the repository.

    >>> _uri("docs/models.md"), _uri("configs"), _uri("benchmarks/fits.py")
    ('models.md', 'files/configs.md', 'files/benchmarks/fits.py.md')
    """
    if origin in OWN:
        return OWN[origin]
    if origin.startswith(f"{DOCS}/"):
        return origin.removeprefix(f"{DOCS}/")
    path = ROOT / origin
    if origin.startswith("benchmarks/") and path.suffix in (".md", ".png"):
        return origin
    return f"{FILES}/{origin}" + ("" if path.suffix in (".md", ".png", ".svg") else ".md")


def _content(origin: str) -> str | bytes:
    """Return the page of a file or a folder of the repository, or the bytes of a picture."""
    path = ROOT / origin
    if path.is_dir():
        about = path / "README.md"
        head = about.read_text("utf-8") if about.exists() else f"# {origin}\n"
        head = LINK.sub(lambda found: _below(found, path.name), head)
        names = sorted(each.name for each in path.iterdir() if each.is_file() and each != about)
        links = (f"- [{name}]({path.name}/{name})\n" for name in names)
        return f"{head}\n## Files\n\n" + "".join(links)
    if path.suffix in (".png", ".svg"):
        return path.read_bytes()
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return text
    language = LANGUAGES.get(path.suffix, "bash")
    return f"# {origin}\n\n````{language}\n{text}\n````\n"


def _below(found: re.Match[str], folder: str) -> str:
    """Return a link of a folder's README.md as it is one folder higher."""
    return found[0] if _is_elsewhere(found[2]) else f"{found[1]}{folder}/{found[2]}{found[3]}"


def _outside(origin: str, text: str) -> Iterator[str]:
    """Yield the paths of the repository, outside docs/, that a page links to."""
    for target in LINK.findall(_without_code(text)):
        if not _is_elsewhere(target[1]):
            path = _resolved(origin, target[1])[0]
            if not path.startswith(f"{DOCS}/") and (ROOT / path).exists():
                yield path


def _is_elsewhere(target: str) -> bool:
    return target.startswith("#") or re.match(r"[a-z]+:", target) is not None


def _resolved(origin: str, target: str) -> tuple[str, str]:
    """Return the path of the repository that a link means, and its anchor."""
    path, _, anchor = target.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)), anchor


def _without_code(text: str) -> str:
    return FENCES.sub("", text)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # mkdocs's
    """Let links to files of the repository lead to their pages."""
    origin = _origin(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def rewritten(found: re.Match[str]) -> str:
        if _is_elsewhere(found[2]):
            return found[0]
        path, anchor = _resolved(origin, found[2])
        target = posixpath.relpath(_uri(path), folder or ".") + (anchor and f"#{anchor}")
        return f"{found[1]}{target}{found[3]}" if (ROOT / path).exists() else found[0]

    parts = FENCES.split(markdown)  # code stands at the odd places
    return "".join(part if i % 2 else LINK.sub(rewritten, part) for i, part in enumerate(parts))


def _origin(uri: str) -> str:
    """Return the path of the repository of which a page was made."""
    for origin, own in OWN.items():
        if uri == own:
            return origin
    if uri.startswith(f"{FILES}/"):
        path = uri.removeprefix(f"{FILES}/")
        return path if (ROOT / path).exists() else path.removesuffix(".md")
    if uri.startswith("benchmarks/") and uri != "benchmarks/index.md":
        return uri
    return f"{DOCS}/{uri}"
