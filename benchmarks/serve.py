"""Requests per second of `m2dr serve`, against an app of sentence-transformers, FAISS and FastAPI.

    python benchmarks/serve.py --seconds 60 --requests 100000 > benchmarks/serve_HOST.md

It needs `pip install "m2dr[compare,cpu,quickstart,serve]" psutil`, and encodes pydocs:stdlib first
if that is not done. All servers run on this machine at the same time, and one after the other is
asked by a few clients on loopback, each of which sends its next request when it has the answer to
the last; the order changes from round to round. Both sides encode the same queries with the same
layers of the same weights, search the same vectors by FAISS's IndexFlatIP, and answer with the
texts of the ten best documents. The peer is what the documentation of its parts suggests: a plain
function in FastAPI's pool of threads that encodes one query and searches with it. `m2dr serve` runs
three times: as it is, with `--batch-size 1`, and with `--dtype fp32`, as the peer computes by
default. Prints Markdown; `--seconds 3 --rounds 1` tries it out.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from common import machine
from timing import process, table_head, table_row

CORPUS, MODEL, DIM, K = "pydocs:stdlib", "minilm", 128, 10
LAYERS, CLIENTS = (2, 6), 32
OURS = {"m2dr serve": (), "  no batches": ("--batch-size", "1"), "  fp32": ("--dtype", "fp32")}
PEER = "peer"
RETURNING = 25  # seconds, in which a server returns what is free to the system


def peer(port: int, root: Path) -> None:
    """Serve a minimal app of sentence-transformers, FAISS and FastAPI."""
    import faiss
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sentence_transformers import SentenceTransformer

    from m2dr.data.loaders import open_dataset
    from m2dr.index.store import open_store
    from m2dr.index.vectors import prefixes
    from m2dr.model.hub import find_folder

    documents = list(open_dataset(CORPUS).documents())
    vectors = open_store(next(root.rglob("layer-06/store.json")).parent).rows(range(len(documents)))
    index = faiss.IndexFlatIP(DIM)
    index.add(prefixes(vectors, DIM, "cosine"))
    models = {}
    for layer in LAYERS:
        model = SentenceTransformer(str(find_folder(MODEL)), truncate_dim=DIM, device="cpu")
        bert: Any = model[0].auto_model
        bert.encoder.layer = bert.encoder.layer[:layer]
        models[layer] = model
    app = FastAPI()

    class Body(BaseModel):
        query: str
        k: int = 10
        layer: int = 6
        dim: int = DIM

    @app.post("/search")
    def search(body: Body) -> dict[str, object]:
        vector = models[body.layer].encode([body.query], normalize_embeddings=True)
        scores, rows = index.search(vector, body.k)
        found = [documents[row] for row in rows[0]]
        return {
            "hits": [
                {"rank": rank, "docid": one.id, "score": float(score), "title": one.title,
                 "text": one.text}
                for rank, (one, score) in enumerate(zip(found, scores[0], strict=True), start=1)
            ]
        }  # fmt: skip

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def client(port: int, seconds: float, most: int, layer: int) -> None:
    """Send requests until the time is over or as many are answered; print seconds and failures."""
    from m2dr.data.loaders import open_dataset

    queries = [query.text for query in open_dataset(CORPUS).queries("test")][:512]
    bodies = [
        json.dumps({"query": query, "k": K, "layer": layer, "dim": DIM}).encode()
        for query in queries
    ]
    head = "POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    requests = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
    times: list[float] = []
    failed = 0

    async def one(number: int, end: float) -> None:
        nonlocal failed
        reads, writes = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end and len(times) < most:
            begun = time.perf_counter()
            writes.write(requests[number % len(requests)])
            number += CLIENTS
            answer = await reads.readuntil(b"\r\n\r\n")
            size = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reads.readexactly(size)
            times.append(time.perf_counter() - begun)
            failed += not answer.startswith(b"HTTP/1.1 200")
        writes.close()

    async def all_of_them() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(one(number, begun + seconds) for number in range(CLIENTS)))
        return time.perf_counter() - begun

    spent = asyncio.run(all_of_them())
    print(json.dumps({"seconds": spent, "times": times, "failed": failed}))


@contextmanager
def server(words: Sequence[str], port: int, path: str) -> Iterator[psutil.Process]:
    """Start a server, and wait until it answers."""
    quiet = subprocess.DEVNULL
    started = subprocess.Popen([sys.executable, *words], stdout=quiet, stderr=quiet)
    try:
        for _ in range(300):
            time.sleep(0.5)
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
                break
            except OSError:
                if started.poll() is not None:
                    raise SystemExit(f"A server ended: {' '.join(words)}") from None
        yield psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait(60)


def asked(port: int, seconds: float, most: int, layer: int) -> dict[str, Any]:
    """Run the clients in a process of their own."""
    words = ("--client", port, seconds, most, layer)
    answer: dict[str, Any] = json.loads(process(__file__, *words))
    return answer


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def measure(
    options: argparse.Namespace, ports: dict[str, int], running: dict[str, psutil.Process]
) -> None:
    """Ask each server in turn, and print the tables."""
    rates: dict[tuple[str, int], list[float]] = {}
    times: dict[tuple[str, int], list[float]] = {}
    work: dict[tuple[str, int], list[float]] = {}
    failures = 0
    for turn in range(options.rounds):
        names = [*ports][turn % len(ports) :] + [*ports][: turn % len(ports)]
        for layer in LAYERS:
            for name in names:
                asked(ports[name], 1.0, 10**9, layer)  # warm
                before = sum(running[name].cpu_times()[:2])
                found = asked(ports[name], options.seconds, 10**9, layer)
                spent = sum(running[name].cpu_times()[:2]) - before
                count = len(found["times"])
                failures += found["failed"]
                rates.setdefault((name, layer), []).append(count / found["seconds"])
                work.setdefault((name, layer), []).append(1000 * spent / count)
                times.setdefault((name, layer), []).extend(found["times"])
    titles = ("requests/s", "of the peer's", "p50", "p95", "p99", "cpu per request")
    print(table_head("server", "layer", *titles))
    for layer in LAYERS:
        for name in ports:
            rate = rates[name, layer]
            pairs = zip(rate, rates[PEER, layer], strict=True)
            ratio = median(mine / theirs for mine, theirs in pairs)
            percentiles = np.percentile(times[name, layer], [50, 95, 99]) * 1000
            spans = [
                *(f"{each:.1f} ms" for each in percentiles),
                f"{median(work[name, layer]):.2f} ms",
            ]
            print(table_row(name, layer, f"{median(rate):,.0f}", f"{ratio:.2f}", *spans))
    print(f"\nRequests that failed: {failures}.")


def memory(options: argparse.Namespace, port: int, process: psutil.Process) -> None:
    """Print the memory that a server keeps while it answers very many requests."""
    print(f"\n{table_head('requests', 'resident memory')}")
    done, step = 0, max(1, options.requests // 5)
    while True:
        time.sleep(RETURNING)
        print(table_row(f"{done:,}", f"{process.memory_info().rss / 2**20:,.0f} MB"), flush=True)
        if done >= options.requests:
            return
        found = asked(port, 10**6, step, LAYERS[0])
        done += len(found["times"])
        if found["failed"]:
            print(f"\nFailed: {found['failed']}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each server and layer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=0, help="of the measurement of memory")
    parser.add_argument("--indexes", type=Path, default=Path("indexes"))
    parser.add_argument("--client", nargs=4, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.client:
        port, seconds, most, layer = options.client
        client(int(port), seconds, int(most), int(layer))
    elif options.peer:
        peer(options.peer, options.indexes)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Start all servers, and print the tables."""
    words = ("--corpus", CORPUS, "--model", MODEL, "--dim", DIM, "--indexes", options.indexes)
    process("-m", "m2dr", "index", "corpus", *words)  # nothing, if that is done
    home = next(options.indexes.rglob("layer-06/store.json")).parents[1]
    ports = {name: free_port() for name in (*OURS, PEER)}
    commands = {
        name: ["-m", "m2dr", "serve", "--index", str(home), "--port", str(ports[name]), *more]
        for name, more in OURS.items()
    }
    commands[PEER] = [__file__, "--peer", str(ports[PEER]), "--indexes", str(options.indexes)]
    rounds = f"{options.rounds} rounds of {options.seconds:g} s"
    print(f"{machine()}; {CLIENTS} clients, {rounds}; L*D{DIM}, k = {K}\n")
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(
                server(commands[name], ports[name], "/docs" if name == PEER else "/health")
            )
            for name in ports
        }
        measure(options, ports, running)
        if options.requests:
            memory(options, ports["m2dr serve"], running["m2dr serve"])


if __name__ == "__main__":
    main()
