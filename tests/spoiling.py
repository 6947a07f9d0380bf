"""Ways to spoil a valid file: bytes, lines, cells, JSON values, arrays, and what stands there."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

Spoil = Callable[[Path, Random], None]

# Markers that become text no JSON writer would give.
_RAW = {
    "@nested": "[" * 100_000,
    "@closed": "[" * 5_000 + "]" * 5_000,
    "@objects": '{"a":' * 50_000,
    "@digits": "9" * 5_000,
    "@huge": "1" + "0" * 400,
    "@inf": "1e999",
    "@nan": "NaN",
    "@minus": "-Infinity",
    "@half": '"\\ud800"',
}
VALUES: tuple[object, ...] = (
    *_RAW, None, True, False, 0, 1, -1, 2, 3, 10**9, 2**63, 0.5, -1.5, 1e30, "", " ", "x", "1", "L2D8",
    "../up", "a\tb", "a\nb", "a\0b", "\x1b[2J\x1b]0;owned\x07", "\u202egnp.exe", "é日本", "=HYPERLINK(1)",
    "<script>alert(1)</script>", "w" * 20_000, [], [[]], [None], ["x"], [1, 2], {}, {"a": 1},
)  # fmt: skip
CELLS = (
    b"", b" ", b"0", b"-1", b"2", b"nan", b"inf", b"1e999", b"9" * 5_000, b"x", b"a b", b"\xff\xfe", b"\0", b'"',
    b"'", b'"a', b"\xc2\xa0", b"\xe2\x80\xae", b"\x1b[2J", b"=1+1", b"\xed\xa0\x80", "²".encode(), "٣".encode(),
)  # fmt: skip
INSERTS = (
    b"\0",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\r",
    b"\n\n",
    b"\x1b[31m",
    b"\xff",
    b"\xc3",
    b"\t",
    b'"',
    b"\x1f\x8b",
    b"}",
)


def of_bytes(path: Path, draw: Random) -> None:
    data = bytearray(path.read_bytes())
    how = draw.choice(
        ("cut", "head", "flip", "insert", "front", "zeros", "empty", "twice", "append")
    )
    where = draw.randrange(len(data) + 1)
    if how == "cut":
        del data[where:]
    elif how == "head":
        del data[:where]
    elif how == "flip" and data:
        for _ in range(draw.choice((1, 1, 8, 64))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif how in ("insert", "front"):
        at = 0 if how == "front" else where
        data[at:at] = draw.choice(INSERTS)
    elif how == "zeros":
        data[where : where + 16] = bytes(len(data[where : where + 16]))
    elif how == "empty":
        data.clear()
    elif how == "twice":
        data += bytes(data)
    else:
        data += bytes(draw.randrange(256) for _ in range(20))
    path.write_bytes(data)


def of_header(path: Path, draw: Random) -> None:
    """Flip bits at the beginning, where binary files say what they are."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 2, 4))):
        if data:
            data[draw.randrange(min(len(data), 128))] = draw.choice(
                (0, 1, 0x28, 0x5B, 0x7F, 0x80, 0xFF)
            )
    path.write_bytes(data)


def of_lines(path: Path, draw: Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True) or [b""]
    number, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    how = draw.choice(("drop", "double", "swap", "ends", "blank", "join", "long"))
    if how == "drop":
        del lines[number]
    elif how == "double":
        lines.insert(other, lines[number])
    elif how == "swap":
        lines[number], lines[other] = lines[other], lines[number]
    elif how == "ends":
        lines = [line.rstrip(b"\r\n") + draw.choice((b"\r\n", b"\r", b"")) for line in lines]
    elif how == "blank":
        lines.insert(number, draw.choice((b"\n", b" \n", b"\t\n", b"\r\n")))
    elif how == "join":
        lines[number] = lines[number].rstrip(b"\r\n")
    else:
        lines[number] = lines[number].rstrip(b"\r\n") + b"x" * 300_000 + b"\n"
    path.write_bytes(b"".join(lines))


def of_cells(path: Path, draw: Random) -> None:
    """Spoil one cell of a table, whatever parts its columns."""
    lines = path.read_bytes().splitlines(keepends=True) or [b""]
    number = draw.randrange(len(lines))
    line = lines[number].rstrip(b"\r\n")
    part = next((part for part in (b"\t", b",", b" = ", b" ") if part in line), b"\t")
    cells = line.split(part)
    at = draw.randrange(len(cells))
    how = draw.choice(("replace", "replace", "replace", "drop", "more"))
    if how == "drop":
        del cells[at]
    else:
        cells[at : at + (how == "replace")] = [draw.choice(CELLS)]
    lines[number] = part.join(cells) + b"\n"
    path.write_bytes(b"".join(lines))


def of_json(path: Path, draw: Random) -> None:
    """Spoil one value, key or object of a file of JSON, or of one of its lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True) if ".jsonl" in path.name else [text]
    number = draw.randrange(len(lines))
    lines[number] = spoilt_json(lines[number], draw) + "\n"
    path.write_text("".join(lines), encoding="utf-8")


def spoilt_json(text: str, draw: Random) -> str:
    value = json.loads(text)
    places = list(_places(value))
    if not places or draw.random() < 0.05:
        return _written(draw.choice(VALUES))
    holder, key = draw.choice(places)
    how = draw.choice(("set", "set", "set", "set", "drop", "more", "rename", "twice"))
    if how == "drop":
        del holder[key]
    elif isinstance(holder, list) or how == "set":
        holder[key] = draw.choice(VALUES)
    elif how == "more":
        holder[draw.choice(("x", "", "format", "a\nb", "\x1b[2J"))] = draw.choice(VALUES)
    elif how == "rename":
        holder[draw.choice(("x", key.upper(), f" {key}", key[:-1]))] = holder.pop(key)
    else:
        marked = {f"{name}@again" if name == key else name: kept for name, kept in holder.items()}
        holder |= marked
    return _written(value).replace("@again", "")


def _written(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    for marker, raw in _RAW.items():
        text = text.replace(f'"{marker}"', raw)
    return text


def _places(value: object) -> list[tuple[dict | list, object]]:
    """Every holder and key in a JSON value, at most 2,000 of them."""
    found: list[tuple[dict | list, object]] = []
    ahead = [value]
    while ahead and len(found) < 2_000:
        holder = ahead.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        found += [(holder, key) for key in keys]
        ahead += [holder[key] for key in keys]
    return found


def of_array(path: Path, draw: Random) -> None:
    """Save another array, or a header that lies."""
    found = np.load(path, allow_pickle=False)
    if not isinstance(found, np.ndarray):
        return of_bytes(path, draw)
    with np.errstate(all="ignore"):
        spoilt: list[object] = [
            found[:-1], found[:0], found[:, :0], found[0], found[None], found.T, np.float64(1.0), found.astype(np.int64),
            found.astype(np.complex64), found.astype(">f4"), np.asfortranarray(found), found * np.nan, found * np.inf,
            found * 1e38, found * 0, found.astype("U8"), found.astype(np.float16), np.array([{}], dtype=object),
            found.view([("a", "f4")]) if found.dtype == np.float32 else found, np.repeat(found, 3, axis=1),
        ]  # fmt: skip
    how = draw.randrange(len(spoilt) + 4)
    if how < len(spoilt):
        np.save(path, spoilt[how], allow_pickle=True)
        return None
    data = path.read_bytes()
    lies = (
        b"(-1, 32)",
        b"(99999999999, 32)",
        b"(" * 50 + b")" * 50,
        b"9" * 5000,
        b"'x', 32",
        b"(1, 32",
        b"__import__('os')",
    )
    body = data[128:]
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + draw.choice(lies) + b", }\n"
    length = len(header) if draw.random() < 0.8 else draw.randrange(2**16)
    path.write_bytes(b"\x93NUMPY\x01\x00" + (length % 2**16).to_bytes(2, "little") + header + body)
    return None


def of_archive(path: Path, draw: Random) -> None:
    """Spoil one array inside an .npz: the JSON in it, or its numbers."""
    with np.load(path, allow_pickle=False) as held:
        arrays = dict(held)
    name = draw.choice(sorted(arrays))
    array = arrays[name]
    if draw.random() < 0.15:
        del arrays[name]
    elif array.dtype == np.uint8 and draw.random() < 0.8:
        arrays[name] = np.frombuffer(spoilt_json(array.tobytes().decode(), draw).encode(), np.uint8)
    else:
        choices = (
            array[:-1],
            array * np.float64("nan"),
            array.astype(np.float32),
            array[None],
            np.zeros(0),
            array.ravel(),
        )
        arrays[name] = draw.choice(choices)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _gone(path: Path, _: Random) -> None:
    path.unlink()


def _folder(path: Path, _: Random) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path, _: Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _dangling(path: Path, _: Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _fifo(path: Path, _: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _other(path: Path, draw: Random) -> None:
    """Put another file of the same folder there."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    if others:
        shutil.copyfile(draw.choice(others), path)


THERE: tuple[Spoil, ...] = (_gone, _folder, _loop, _dangling, _other)


def spoil(path: Path, draw: Random, waits: bool = False) -> str:
    """Spoil a file in a way that suits its name; returns how.

    With `waits` a FIFO is no way: what people bring may come through one, and is waited for.
    """
    ways: list[Spoil] = [of_bytes, of_bytes, draw.choice(THERE if waits else (*THERE, _fifo))]
    name = path.name
    if ".json" in name:
        ways += [of_json] * 6
    if name.endswith((".jsonl", ".tsv", ".csv", ".trec", ".txt", ".toml", "docids")):
        ways += [of_lines, of_lines]
    if name.endswith((".tsv", ".csv", ".trec", ".txt", ".toml")):
        ways += [of_cells] * 4
    if name.endswith(".npy"):
        ways += [of_array] * 5
    if name.endswith(".npz"):
        ways += [of_archive] * 5
    if name.endswith((".npy", ".npz", ".safetensors", ".faiss", "index")) or "." not in name:
        ways += [of_header, of_header]
    way = draw.choice(ways)
    way(path, draw)
    return way.__name__.strip("_")
