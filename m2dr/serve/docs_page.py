"""The page /docs: the OpenAPI description as HTML, without a script or a request to elsewhere."""

from collections.abc import Iterator
from html import escape
from typing import Any

Table = dict[str, Any]
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8886; border-radius: .3rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; }
h2 { margin-top: 2.5rem; border-top: 1px solid #8886; padding-top: 1rem; }
"""


def docs_page(api: Table) -> str:
    """Return the page of an OpenAPI description."""
    body = "".join(
        _operation(path, method, found, api)
        for path, methods in api["paths"].items()
        for method, found in methods.items()
    )
    title = escape(f"{api['info']['title']} {api['info']['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        '<meta name=viewport content="width=device-width">'
        f'<link rel=stylesheet href="docs.css"><h1>{title}</h1>'
        f"<p>{escape(api['info']['description'])} For tools: "
        f'<a href="openapi.json">openapi.json</a>.{_token(api)}</p>{body}'
    )


def _token(api: Table) -> str:
    needed = " Requests bring a token: <code>Authorization: Bearer TOKEN</code>."
    return needed if "security" in api else ""


def _operation(path: str, method: str, found: Table, api: Table) -> str:
    head = f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(found['summary'])}</p>"
    body = ""
    if "requestBody" in found:
        ref = found["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = api["components"]["schemas"][ref.rpartition("/")[2]]
        rows = "".join(_fields(schema))
        body = f"<table><tr><th>field<th>type<th>default<th>meaning{rows}</table>"
    rows = "".join(
        f"<tr><td>{status}<td>{escape(answer['description'])}"
        for status, answer in sorted(found["responses"].items(), key=lambda pair: str(pair[0]))
    )
    return f"{head}{body}<h3>Statuses</h3><table>{rows}</table>"


def _fields(schema: Table) -> Iterator[str]:
    for name, field in schema["properties"].items():
        required = name in schema.get("required", ())
        default = "required" if required else str(field.get("default", ""))
        cells = (name, _type(field), default, field.get("description") or _described(field))
        yield "<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells)


def _described(field: Table) -> str:
    parts = (part.get("description") for part in field.get("anyOf", ()))
    return next((part for part in parts if part), "")


def _type(field: Table) -> str:
    """Return the type of a field in words, with its limits."""
    if "anyOf" in field:
        return " or ".join(_type(part) for part in field["anyOf"] if part.get("type") != "null")
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        most = f"at most {field['maxItems']} " if "maxItems" in field else ""
        return f"list of {most}{_type(field['items'])}s"
    low, high = field.get("minimum"), field.get("maximum")
    limits = f" from {low}" * (low is not None) + f" to {high}" * (high is not None)
    return f"{field.get('type', '')}{limits}"
