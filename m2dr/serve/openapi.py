"""The description of the HTTP interface: bodies, answers and statuses."""

from typing import Any

from m2dr.core.requests import ServeRequest
from m2dr.serve.messages import EmbedBody, EmbeddingsBody, SearchBody, schemas

Table = dict[Any, Any]
DESCRIPTION = "Search an index at any layer and dim, and embed texts."
STATUSES = {
    400: "The request is no JSON, or the input of /v1/embeddings is no text.",
    401: "The token is missing or wrong.",
    403: "The request names another host than those of this server.",
    404: "There is no such path, index or model.",
    405: "The path is asked with another method.",
    408: "The body of the request came too slowly.",
    413: "The request has too many bytes.",
    415: "The body is not application/json.",
    422: "A value is missing, of another type, or not one that can be searched.",
    429: "Too many texts wait; try again after the seconds of Retry-After.",
    503: "The index cannot be read, or the server is stopping.",
    504: "The answer took too long.",
}
_OF_POST = (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 503, 504)
_OF_GET = {"/ready": (403, 405, 503), "/health": (403, 405), "/metrics": (401, 403, 405)}
_NUMBER, _WHOLE, _STRING = {"type": "number"}, {"type": "integer"}, {"type": "string"}


def _object(required: Table, **optional: Table) -> Table:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
    }


def _list(of: Table) -> Table:
    return {"type": "array", "items": of}


_HIT = _object(
    {
        "rank": _WHOLE,
        "docid": _STRING,
        "score": _NUMBER,
        "title": _STRING,
        "text": _STRING,
        "fields": {"type": "object"},
    }
)
_TIMES = _object({"tokenise_ms": _NUMBER, "encode_ms": _NUMBER, "search_ms": _NUMBER})
_COST = _object(
    {"cut": _STRING, "layer": _WHOLE, "dim": _WHOLE, "multiply_adds": _WHOLE,
     "bytes_per_document": _WHOLE}
)  # fmt: skip
_GRID = _object(
    {
        "measure": _STRING,
        "cells": _list(_object({"layer": _WHOLE, "dim": _WHOLE, "value": _NUMBER})),
    }
)
_ANSWERS: dict[str, Table] = {
    "SearchBody": _object(
        {
            "index": _STRING, "cut": _STRING, "layer": _WHOLE, "dim": _WHOLE,
            "results": _list(
                _object({"query": _STRING, "hits": _list(_HIT)}, full=_list(_HIT), overlap=_NUMBER)
            ),
            "times": _TIMES,
        },
        full_times=_TIMES,
        problem=_STRING,
    ),
    "EmbedBody": _object({"cut": _STRING, "vectors": _list(_list(_NUMBER))}),
    "EmbeddingsBody": _object(
        {
            "object": _STRING,
            "data": _list(
                _object(
                    {"object": _STRING, "index": _WHOLE,
                     "embedding": {"anyOf": [_list(_NUMBER), _STRING]}}
                )
            ),
            "model": _STRING,
            "usage": _object({"prompt_tokens": _WHOLE, "total_tokens": _WHOLE}),
        }
    ),
    "/models": _object(
        {
            "indexes": _list(
                _object(
                    {
                        "name": _STRING, "corpus": _STRING, "model": _STRING, "documents": _WHOLE,
                        "layers": _list(_WHOLE), "dims": _list(_WHOLE), "full": _STRING,
                        "similarity": _STRING, "fields": _list(_STRING),
                        "examples": _list(_STRING), "costs": _list(_COST),
                        "grid": {"anyOf": [_GRID, {"type": "null"}]},
                        "problem": {"anyOf": [_STRING, {"type": "null"}]},
                    }
                )
            )
        }
    ),
    "/v1/models": _object(
        {
            "object": _STRING,
            "data": _list(
                _object(
                    {"id": _STRING, "object": _STRING, "created": _WHOLE, "owned_by": _STRING}
                )
            ),
        }
    ),
    "/health": _object({"status": _STRING}),
    "/ready": _object({"status": _STRING, "problems": {"type": "object"}}),
}  # fmt: skip
ERROR = _object(
    {
        "error": _object(
            {
                "message": _STRING,
                "type": _STRING,
                "param": {"anyOf": [_STRING, {"type": "null"}]},
                "code": {"anyOf": [_STRING, {"type": "null"}]},
            }
        )
    }
)


def of_body(kind: type[Any]) -> Table:
    """Return how a route with a body is described."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
        },
        "responses": {**_ok(kind.__name__), **_errors(_OF_POST)},
    }


def of_get(path: str) -> Table:
    """Return how a route without a body is described."""
    if path == "/metrics":
        ok: Table = {
            200: {"description": "Metrics.", "content": {"text/plain": {"schema": _STRING}}}
        }
    else:
        ok = _ok(path)
    return {"responses": {**ok, **_errors(_OF_GET.get(path, (401, 403, 405, 503)))}}


def describe(table: Table, limits: ServeRequest, token: bool) -> Table:
    """Return the description with the schemas of bodies, the limits and the token."""
    found = schemas(SearchBody, EmbedBody, EmbeddingsBody)
    search, embed = found["SearchBody"]["properties"], found["EmbedBody"]["properties"]
    given = found["EmbeddingsBody"]["properties"]["input"]["anyOf"]
    search["k"]["maximum"] = limits.max_k
    text: Table = {"maxLength": limits.max_characters, "pattern": r"\S"}
    lists = [_array(search["queries"]), embed["texts"], given[1]]
    for each in lists:
        each["minItems"], each["maxItems"] = 1, limits.max_texts
        each["items"].update(text)
    for each in (_text(search["query"]), given[0]):
        each.update(text)
    _text(search["filter"])["maxLength"] = limits.max_characters
    table.setdefault("components", {}).setdefault("schemas", {}).update(found, Error=ERROR)
    for names in table["paths"].values():
        for method in names.values():
            method["responses"].pop("422", None) if "requestBody" not in method else None
    if token:
        table["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        table["security"] = [{"token": []}]
        for open_path in ("/health", "/ready"):
            table["paths"][open_path]["get"]["security"] = []
    return table


def _array(schema: Table) -> Table:
    return next(each for each in schema["anyOf"] if each.get("type") == "array")


def _text(schema: Table) -> Table:
    return next(each for each in schema["anyOf"] if each.get("type") == "string")


def _ok(name: str) -> Table:
    content = {"application/json": {"schema": _ANSWERS[name]}}
    return {200: {"description": "The answer.", "content": content}}


def _errors(statuses: tuple[int, ...]) -> Table:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": STATUSES[status], "content": content} for status in statuses}
