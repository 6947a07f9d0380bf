"""Files that other tools write, each a small case: read right, or refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from m2dr.core.records import Document
from m2dr.data.loaders import open_dataset

PAIR = [Document("a", "open it", "T"), Document("b", "close it")]
LLAMA = {
    "docstore/metadata": {"a": {"doc_hash": "x"}},
    "docstore/data": {
        name: {"__data__": {"id_": name, "text": text, "metadata": {"year": 1}}, "__type__": "1"}
        for name, text in (("a", "open it"), ("b", "close it"))
    },
}
LANGCHAIN = [
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "document", "Document"],
     "kwargs": {"page_content": text, "metadata": {"year": 1}, "id": name, "type": "Document"}}
    for name, text in (("a", "open it"), ("b", "close it"))
]  # fmt: skip
# name of the file, its content, its documents
CORPORA: dict[str, tuple[str, str, list[Document]]] = {
    "array": ("a.json", '[{"id": "a", "title": "T", "text": "open it"},\n{"id": "b", "text": "close it"}]', PAIR),
    "by id": ("a.json", '{\n"a": {"title": "T", "text": "open it"}, "b": "close it"}', PAIR),
    "by id on one line": ("a.json", '{"a": {"title": "T", "text": "open it"}, "b": "close it"}', PAIR),
    "columns on one line": ("a.json", '{"id": ["a", "b"], "title": ["T", ""], "body": ["open it", "close it"]}', PAIR),
    "one row on one line": ("a.json", '{"docno": "b", "contents": "close it"}\n', PAIR[1:]),
    "lines": ("a.json", '{"id": "a", "title": "T", "text": "open it"}\n{"id": "b", "text": "close it"}', PAIR),
    "semicolon": ("a.csv", 'id;title;text\na;T;"open it"\nb;;close it', PAIR),
    "tab in csv": ("a.csv", "id\ttitle\ttext\na\tT\topen it\nb\t\tclose it", PAIR),
    "comma, semicolon in text": ("a.csv", "id,text\na,x; y; z", [Document("a", "x; y; z")]),
    "zstd": ("a.jsonl.zst", '{"id": "a", "title": "T", "text": "open it"}\n{"id": "b", "text": "close it"}', PAIR),
    "tevatron": ("a.jsonl", '{"docid": "a", "title": "T", "text": "open it"}\n{"docid": "b", "text": "close it"}', PAIR),
    "langchain": ("a.json", json.dumps(LANGCHAIN), [Document("a", "open it"), PAIR[1]]),
    "langchain lines": ("a.jsonl", '{"id": null, "page_content": "open it", "metadata": {}, "type": "Document"}', [Document("0", "open it")]),
    "llamaindex": ("docstore.json", json.dumps(LLAMA), [Document("a", "open it"), PAIR[1]]),
    "llamaindex, indented": ("d.json", json.dumps(LLAMA, indent=1), [Document("a", "open it"), PAIR[1]]),
    "haystack": ("a.jsonl", '{"id": "a", "content": "open it", "meta": {"year": 1}, "score": null}', [Document("a", "open it")]),
    "ids and texts": ("a.tsv", "a\topen it\nb\tclose it", [Document("a", "open it"), PAIR[1]]),
    "folder of lines": ("d/0.jsonl\0d/1.jsonl", '{"id": "a", "contents": "open it"}\0{"id": "b", "contents": "close it"}', [Document("a", "open it"), PAIR[1]]),
    "folder of arrays": ("d/0.json\0d/1.json", '[{"id": "a", "contents": "open it"}]\0[{"id": "b", "contents": "close it"}]', [Document("a", "open it"), PAIR[1]]),
    "notes": ("d/my a.md\0d/sub/b.txt\0d/.git/c.md", "intro\n\n## T ##\n\nopen it\0# close it\0no", [Document("my_a.md", "intro\n\n\n\nopen it", "T"), Document("sub/b.txt", "# close it")]),
}  # fmt: skip


def put(folder: Path, names: str, contents: str) -> str:
    for name, content in zip(names.split("\0"), contents.split("\0"), strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        zipped: Any = {"compression": "zstd"} if path.suffix == ".zst" else {"compression": None}
        with pa.output_stream(str(path), **zipped) as file:
            file.write(content.encode())
    return str(folder / names.split("\0")[0].split("/")[0])


@pytest.mark.parametrize("case", CORPORA)
def test_documents(case: str, tmp_path: Path) -> None:
    names, contents, documents = CORPORA[case]

    dataset = open_dataset(put(tmp_path, names, contents))

    assert list(dataset.documents()) == documents
    assert [dataset.document(each.id) for each in documents] == documents
