"""The roles of columns: what a row holds, by the names that tools give to its columns.

Of several names of one role the first that has a value counts. A column without a role is a field
of a document, and of any other row it is said not to be read.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from m2dr.core.progress import say_once

ASIDE = ""  # the role of columns that are known to be of no use: nothing is said of them


class Roles(dict[str, tuple[str, ...]]):
    """The names of columns by role, in rows of one kind."""

    def of(self, row: Mapping[str, Any], *needed: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values of a row by role, and its other columns.

        A column that lost its role to another is one of them, unless it has the same value.

        Raises:
            ValueError: a role that is needed has no value.

        >>> DOCUMENT.of({"id": "a", "docid": "a", "pid": "b", "text": "open", "year": 1999})
        ({'id': 'a', 'text': 'open'}, {'pid': 'b', 'year': 1999})
        """
        values, rest = dict[str, Any](), dict(row)
        for role, names in self.items():
            for name in names:
                if (value := row.get(name)) is None:
                    continue
                if role not in values:
                    values[role] = rest.pop(name)
                elif role == ASIDE or (isinstance(value, str | int) and value == values[role]):
                    del rest[name]
        for role in needed:
            if role not in values:
                wanted, there = ", ".join(self[role]), ", ".join(row) or "none"
                raise ValueError(f"it has no value under any of {wanted}; its columns are {there}")
        # Nothing is lost of a column without a value.
        return values, {name: rest[name] for name in rest if not _is_empty(rest[name])}

    def has(self, columns: Collection[str], *roles: str) -> bool:
        """Return whether there is a column of each of these roles."""
        return not any(set(self[role]).isdisjoint(columns) for role in roles)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def say_unread(where: object, columns: Iterable[str]) -> None:
    """Say which columns of a file have no role."""
    if names := ", ".join(sorted(columns)):
        say_once(f"{where}: not read are the columns {names}; --columns tells what a column is.")


PLAIN = ("_id", "text")  # columns of a file of cells without a header
TRIPLE = ("query", "positive", "negative")  # as PLAIN, of texts or ids
METADATA = ("metadata", "meta")  # an object whose keys are fields: of BEIR and LangChain, Haystack

# Those of BEIR, MTEB, Pyserini, Tevatron, PyTerrier, ir_datasets, LangChain and Haystack.
DOCUMENT = Roles(
    id=("_id", "id", "docid", "document_id", "doc_id", "docno", "pid"),
    title=("title",),
    text=("text", "contents", "page_content", "content", "passage", "body"),
)
QUERY = Roles({
    "id": ("_id", "id", "query_id", "query-id", "qid", "topic", "topic_id", "number"),
    "text": ("query", "text", "query_text", "question", "title"),
    ASIDE: (*METADATA, "split"),
})  # fmt: skip
JUDGEMENT = Roles({
    "query": ("query-id", "query_id", "qid"),
    "document": ("corpus-id", "corpus_id", "docid", "document_id", "doc_id", "docno", "pid"),
    "relevance": ("score", "relevance", "rel", "label", "grade"),
    ASIDE: ("iteration", "split"),
})  # fmt: skip
# A query with documents, in lower case: m2dr's own names, those of Tevatron, sentence-transformers
# and FlagEmbedding, and single ones in tables. A label of 0 marks a negative where no negatives
# stand beside it; so does a score there.
GROUP = Roles(
    split=("split",),
    id=("query_id",),
    query=("query", "anchor", "question", "query_text"),
    positives=("document", "positive_passages", "positives", "positive", "pos", "answer"),
    negatives=("negative_passages", "negatives", "negative", "neg"),
    positive_scores=("positive_scores", "pos_scores", "positive_score", "pos_score"),
    negative_scores=("negative_scores", "neg_scores", "negative_score", "neg_score"),
    label=("label", "labels"),
    relevance=(
        "relevance", "relevance_label", "is_relevant", "relevant", "rel", "grade", "is_answer",
        "is_correct", "is_positive", "is_selected", "is_duplicate", "correct", "gold", "gold_label",
        "target", "judgment", "judgement", "relevance_score", "similarity", "similarity_score",
    ),
    scores=("scores", "score"),
)  # fmt: skip
# A document inside a group.
PASSAGE = Roles(DOCUMENT, score=("score",), label=(*GROUP["label"], *GROUP["relevance"]))
# A line of a file of a teacher's scores: {"query_id": …, "document_ids": […], "scores": […]}.
SCORES = Roles(
    query=("query_id", "qid"),
    documents=(
        "document_ids", "docids", "passage_ids", "pids",
        "document_id", "docid", "passage_id", "pid",
    ),
    scores=("scores", "score"),
)  # fmt: skip
# Pairs of sentences, first and second at one place, of STS-B and SNLI, SICK, MultiNLI, MTEB, Quora,
# MRPC; or single ones. In lower case.
SENTENCE = Roles(
    first=("sentence1", "sentence_a", "premise", "text1", "question1", "#1 string"),
    second=("sentence2", "sentence_b", "hypothesis", "text2", "question2", "#2 string"),
    score=(
        "score", "similarity", "relatedness_score", "label", "labels", "gold_label", "quality",
        "is_duplicate",
    ),
    text=("text", "sentence"),
    split=("split", "semeval_set"),  # in files that hold train, dev and test together
)  # fmt: skip
# A text to classify, of MTEB, SetFit and Hugging Face, Banking77, CLINC150.
LABELLED = Roles(
    text=("text", "sentence", "utterance", "query", "content"),
    label=("label", "category", "labels", "intent", "class", "label_text"),
    split=SENTENCE["split"],
)
# A vector of another tool, and the keys above it in the answers of OpenAI, Google, Cohere and
# others.
VECTOR = Roles({
    "id": ("custom_id", "key", *dict.fromkeys((*DOCUMENT["id"], *QUERY["id"])), "pk", "ids"),
    "vector": (
        "embedding", "embeddings", "vector", "vectors", "emb", "values", "float",
        "response", "body", "data",
    ),
    ASIDE: ("index", "object", "model", "usage", "texts"),
})  # fmt: skip
# Names of a row's texts, id or vector, which are no ids in an object of rows by id.
OF_A_ROW = {
    "_id", "id", "docid", "error", *DOCUMENT["text"], *QUERY["text"], *GROUP["query"],
    *SENTENCE["first"], *LABELLED["text"], *VECTOR["vector"],
}  # fmt: skip
