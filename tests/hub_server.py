"""A stand-in of the Hugging Face hub: repositories in memory, behind the interface of its client."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_a_test"
Files = dict[str, bytes]


@dataclass
class Hub:
    """What the hub holds, and what it was asked."""

    url: str = ""
    commits: dict[str, Files] = field(default_factory=dict)  # by their hash
    branches: dict[tuple[str, str], str] = field(default_factory=dict)  # of a repository
    objects: Files = field(default_factory=dict)  # large files by their sha256
    private: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def files(self, repository: str, branch: str = "main") -> Files:
        """Files at the head of a branch."""
        return self.commits[self.branches[repository, branch]]

    def commit(self, repository: str, branch: str, files: Files) -> str:
        """Put files at the head of a branch, and return the hash of the commit."""
        told = repr((repository, branch, len(self.commits), sorted(files)))
        oid = hashlib.sha1(told.encode()).hexdigest()
        self.commits[oid] = dict(files)
        self.branches[repository, branch] = oid
        return oid

    def at(self, repository: str, revision: str) -> str:
        """Hash of a branch or a commit; empty where there is none."""
        known = revision if revision in self.commits else ""
        return self.branches.get((repository, revision), known)


class Handler(BaseHTTPRequestHandler):
    """The requests that pushing and fetching a model make."""

    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def answer(self, status: int, value: object = None, **headers: str) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value or {}).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def parts(self) -> list[str]:
        self.hub.asked.append(f"{self.command} {self.path}")
        return [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]

    def is_allowed(self) -> bool:
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not allowed:
            self.answer(401, {"error": "Invalid user token."})
        return allowed

    def do_POST(self) -> None:
        parts, body = self.parts(), self.body()
        if not self.is_allowed():
            return
        if parts[-3:] == ["lfs", "objects", "batch"]:
            self.answer(200, {"objects": [self.action(one) for one in json.loads(body)["objects"]]})
        elif parts[:2] == ["api", "repos"]:
            self.create(json.loads(body))
        elif parts[:2] == ["api", "validate-yaml"]:
            self.answer(200, {"errors": []})
        elif parts[4] == "branch":
            repository = "/".join(parts[2:4])
            known = (repository, parts[5]) in self.hub.branches
            if not known:
                self.hub.branches[repository, parts[5]] = self.hub.branches[repository, "main"]
            self.answer(409 if known else 200)
        elif parts[4] == "preupload":
            self.answer(200, {"files": [mode(file) for file in json.loads(body)["files"]]})
        elif parts[4] == "commit":
            self.take("/".join(parts[2:4]), parts[5], [json.loads(x) for x in body.splitlines()])

    def create(self, asked: dict[str, str]) -> None:
        repository = f"{asked['organization']}/{asked['name']}"
        known = (repository, "main") in self.hub.branches
        if not known:
            self.hub.commit(repository, "main", {".gitattributes": b"*.safetensors filter=lfs\n"})
            self.hub.private |= {repository} if asked.get("visibility") == "private" else set()
        self.answer(409 if known else 200, {"url": f"{self.hub.url}/{repository}"})

    def action(self, one: dict[str, object]) -> dict[str, object]:
        upload = {"upload": {"href": f"{self.hub.url}/objects/{one['oid']}"}}
        return one if one["oid"] in self.hub.objects else {**one, "actions": upload}

    def take(self, repository: str, branch: str, lines: list[dict[str, dict[str, str]]]) -> None:
        files = dict(self.hub.files(repository, branch))
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.hub.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = self.hub.commit(repository, branch, files)
        url = f"{self.hub.url}/{repository}/commit/{oid}"
        self.answer(200, {"commitUrl": url, "commitOid": oid, "pullRequestUrl": None})

    def do_PUT(self) -> None:
        oid, data = self.parts()[-1], self.body()
        assert hashlib.sha256(data).hexdigest() == oid
        self.hub.objects[oid] = data
        self.answer(200)

    def do_GET(self) -> None:
        parts = self.parts()
        if parts[0] == "api":
            repository, rest = "/".join(parts[2:4]), parts[4:]
            oid = self.hub.at(repository, rest[1] if rest else "main")
            if not oid:
                known = (repository, "main") in self.hub.branches
                self.answer(404, X_Error_Code="RevisionNotFound" if known else "RepoNotFound")
            elif rest and rest[0] == "tree":
                self.answer(200, [entry(*file) for file in self.hub.commits[oid].items()])
            else:
                private = repository in self.hub.private
                told = {"id": repository, "sha": oid, "siblings": [], "private": private}
                self.answer(200, told)
            return
        oid = self.hub.at("/".join(parts[:2]), parts[3])
        data = self.hub.commits.get(oid, {}).get("/".join(parts[4:]))
        if data is None:
            self.answer(404, X_Error_Code="EntryNotFound" if oid else "RepoNotFound")
            return
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        self.answer(200, data, X_Repo_Commit=oid, ETag=etag)

    def do_HEAD(self) -> None:
        self.do_GET()


def mode(file: dict[str, str]) -> dict[str, object]:
    large = file["path"].endswith((".safetensors", ".png"))
    kind = "lfs" if large else "regular"
    return {"path": file["path"], "uploadMode": kind, "shouldIgnore": False, "oid": None}


def entry(path: str, data: bytes) -> dict[str, object]:
    oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return {"type": "file", "path": path, "size": len(data), "oid": oid}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub for the time of a block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
