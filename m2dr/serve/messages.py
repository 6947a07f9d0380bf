"""The bodies of requests, checked by pydantic, which is imported here alone; and errors."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from m2dr.core.errors import UserError, counted, nearest

Body = TypeVar("Body", bound=BaseModel)
Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], Field(fail_fast=True)]  # an error per item would take a second
Layer = Annotated[int, Field(ge=0, description="Layers that texts run through; all by default.")]
Dim = Annotated[int, Field(ge=1, description="Dims that are compared; the most by default.")]
_REF = "#/components/schemas/{model}"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class SearchBody(_Strict):
    """A search: one query, or several."""

    query: Text | None = None
    queries: Texts | None = Field(None, min_length=1)
    k: int = Field(10, ge=1, description="Documents per query.")
    layer: Layer | None = None
    dim: Dim | None = None
    filter: Text | None = Field(None, description="Of the documents' fields, as `year >= 2020`.")
    index: str | None = Field(None, description="Name of an index; the first one by default.")
    compare: bool = Field(
        False, description="Whether the answer of the full model stands beside that of the cut."
    )


class EmbedBody(_Strict):
    """Texts to embed."""

    texts: Texts = Field(min_length=1)
    side: Literal["query", "document"] = "document"
    layer: Layer | None = None
    dim: Dim | None = None
    index: str | None = Field(None, description="Name of an index; the first one by default.")


class EmbeddingsBody(BaseModel):
    """A request as OpenAI's `/v1/embeddings` takes it, with a layer and a side."""

    model_config = ConfigDict(strict=True, extra="ignore")

    input: Text | Texts = Field(description="A text, or several. Token ids are refused.")
    model: str = Field(description="Name of an index or of its model, as `GET /models` has them.")
    dimensions: Dim | None = None
    encoding_format: Literal["float", "base64"] = "float"
    layer: Layer | None = None
    side: Literal["query", "document"] = "document"
    user: str | None = None


class HttpError(Exception):
    """A request that is not answered, with the status that says so."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.kind = status, message, param, kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the body, in the form of OpenAI's errors."""
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": None}
        return {"error": told}


def sentence_of(error: UserError | OSError) -> str:
    """Return what an error of the files of an index says."""
    if isinstance(error, UserError):
        return str(error)
    where = error.filename or "A file of the index"
    return f"{where} cannot be read or written: {error.strerror or error}."


def read_body(kind: type[Body], data: bytes) -> Body:
    """Read a request.

    Raises:
        HttpError: it is no JSON, or not such a request.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if kind is EmbeddingsBody and first["loc"][:1] == ("input",):
            told = "Give `input` as a text or a list of texts; lists of token ids are not taken."
            raise HttpError(400, told, "input") from None
        is_json = first["type"] != "json_invalid"
        where = ".".join(str(part)[:40] for part in first["loc"][:3])
        told = f"{where}: {first['msg']}" if where else first["msg"]
        if first["type"] == "extra_forbidden":
            told = f"There is no field {where!r}. {nearest(where, kind.model_fields)}"
        more = error.error_count() - 1
        rest = f" ({counted(more, 'further problems')})" if more else ""
        raise HttpError(
            422 if is_json else 400, f"{_plain(told)}{rest}", param=where or None
        ) from None


def _plain(text: str) -> str:
    """Return a text without what UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def schemas(*kinds: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schemas of requests by name, as OpenAPI's components have them."""
    return {kind.__name__: kind.model_json_schema(ref_template=_REF) for kind in kinds}
