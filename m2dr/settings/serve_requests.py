"""Request of `m2dr serve`; neither torch nor numpy is imported here."""

from dataclasses import dataclass
from pathlib import Path

from m2dr.records.option import option
from m2dr.settings.index_requests import PYDOCS, device_option, dtype_option, root_option

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class ServeRequest:
    """What `m2dr serve` is asked."""

    indexes: tuple[str, ...] = option(
        (),
        "Folder of an index: of all layers of a model, of one layer, or of one dim; by default the "
        "index of --corpus by --model.",
        "--index",
    )
    corpus: str = option(
        PYDOCS, "The documents, where no --index is given; else, where their texts are now."
    )
    model: str = option(
        "", "Folder or id; by default the one that an index names, or the newest in models/."
    )
    root: Path = root_option()
    grid: Path | None = option(
        None,
        "grid.json of m2dr evaluate, which the page shows; by default that of the same model and "
        "corpus in results/.",
        is_file=True,
    )
    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0 for every network.")
    allow_hosts: tuple[str, ...] = option(
        (), "Name by which a reverse proxy asks, besides localhost and addresses.", "--allow-host"
    )
    port: int = option(8080, "Port to listen at; 0 for any that is free.", most=65535)
    token_env: str = option(
        "", "Environment variable with the token that requests must bring.", metavar="NAME"
    )
    engine: str = option("", "An engine that was built, or exact; the flat index by default.")
    runtime: str = option("torch", "What encodes: torch, onnx, openvino, or auto for the fastest.")
    device: str = device_option()
    dtype: str = dtype_option()
    batch_size: int = option(64, "Texts that are encoded at once; 1 for no batches.", least=1)
    batch_wait: float = option(
        2.0, "Milliseconds that a batch waits for further requests while there are many."
    )
    queue: int = option(2048, "Texts that may wait; further requests get 429.", least=1)
    max_body: int = option(2**20, "Bytes of a request, at most.", least=64)
    max_texts: int = option(256, "Queries or texts of a request, at most.", least=1)
    max_characters: int = option(32768, "Characters of a text or a filter, at most.", least=1)
    max_k: int = option(1000, "Documents per query, at most.", least=1)
    max_hits: int = option(20000, "Documents of an answer, at most.", least=1)
    timeout: float = option(30.0, "Seconds after which a request gets 504.")
    reload_seconds: float = option(2.0, "How often indexes are looked at for changes; 0 for never.")
    log_queries: bool = option(False, "Write the texts of queries into the log.")
