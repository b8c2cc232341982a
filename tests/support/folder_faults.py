"""Faults in the files of a run folder: by their structure, by their bytes, and by what is at their path."""

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hydrant.files.on_disk import remove

Write = Callable[[Path], object]
Change = tuple[str, Callable[[], str]]
"""What is changed in a document, and a function that makes the new text: few of the changes are tried."""


@dataclass(frozen=True)
class Fault:
    """A change of one file of a run folder."""

    file: str
    what: str
    apply: Write

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


STRINGS = ["text", "", "\x1b]0;title\x07\x1b[2J", "\u202egnp", "=HYPERLINK(1)", "x" * 5000, "${", "${oc.env:HOME}",
           "../../..", "/dev/zero", "2024-01-01", "1e-3", "nan", "???", "val/accuracy", "finished"]  # fmt: skip
NUMBERS = ["-1", "0", "1", "2.5", "1e400", "-1e400", "1e308", "5e-324", "NaN", "Infinity", "9" * 17, "9" * 30,
           "9" * 5000]  # fmt: skip
CONTAINERS = ["[]", "{}", "[1]", '["a"]', '{"a": 1}', '{"_target_": "os.system"}', '{"metric": "val/loss"}',
              '{"value": "x", "metric": [], "num_updates": {}}', '[{"run": 1}]']  # fmt: skip
JSON = [*map(json.dumps, STRINGS), *NUMBERS, *CONTAINERS, "null", "true", '"\\ud800"', '"\\u0000"',
        "[" * 60 + "]" * 60, "[" * 900 + "]" * 900]  # fmt: skip
"""Values as JSON, most of which are also YAML."""

YAML = ["2024-01-01", "!!binary aGk=", "!!set {a}", "!!python/object/apply:os.getcwd []", "!!int ''", "!!float x",
        "!!timestamp 2024-13-45", "!!timestamp x", "0x" + "f" * 5000, ".inf", ".nan", "1:30", "&a [*a]", "*nothing",
        '"\\x1b[2J"', "{1: 2}", "{null: 2}", "{[1]: 2}", "{2024-01-01: 2}", "<<", "? b", "%TAG", "!<x> y"]  # fmt: skip

BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))])
DOCUMENTS = [b"", b"\n", b"null", b"[]", b"{}", b"[1]", b"1", b'"text"', b"\xff\xfe\x00", bytes(100), b"\xef\xbb\xbf{}",
             "{}".encode("utf-16"), b"[" * 100_000, b"{" * 100_000, b'{"a": ' * 5000 + b"1" + b"}" * 5000,
             b"- " * 100_000, b"a: " * 1000, b"a: ${", b"a: b\n---\nc: d", b"\t", b"]", b"'", b'"', b"&a [*a]",
             BOMB.encode(), b"x" * 3_000_000, b"\n".join(b" " * n + b"a:" for n in range(2000)),
             b"\x1b]0;title\x07", b"NaN", b"\r\n" * 1000]  # fmt: skip


def replace(content: bytes | Callable[[], str]) -> Write:
    def write(path: Path) -> None:
        remove(path)
        path.write_bytes(content if isinstance(content, bytes) else content().encode(errors="surrogatepass"))

    return write


def _link(target: str) -> Write:
    def write(path: Path) -> None:
        remove(path)
        path.symlink_to(path.name if target == "itself" else target)

    return write


def _folder(path: Path) -> None:
    remove(path)
    (path / "inner").mkdir(parents=True)


def _pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


PATHS: dict[str, Write] = {
    "missing": remove,
    "a folder": _folder,
    "a pipe": _pipe,
    "without permission": lambda path: path.chmod(0),
    **{f"a link to {t}": _link(t) for t in ("itself", "nowhere", "/dev/zero", "/dev/stdin", "/", "..")},
}


def faults(run: Path, files: dict[str, str], rng: random.Random) -> Iterator[Fault]:
    """Yield faults of the files of a run: by name, whether each is json, lines, yaml, bytes or a folder."""
    for file, kind in files.items():
        for what, write in PATHS.items():
            yield Fault(file, what, write)
        if kind == "folder":
            yield Fault(file, "a file", replace(b"x"))
            continue
        content = (run / file).read_bytes()
        for document in DOCUMENTS:
            yield Fault(file, f"{document[:20]!r} ({len(document)} bytes)", replace(document))
        structured = {"json": _json, "lines": _lines, "yaml": _yaml, "bytes": _nothing}[kind]
        for what, text in structured(content.decode(errors="replace"), rng):
            yield Fault(file, what, replace(text))
        for _ in range(_NUM_FLIPS):
            yield _flip(file, content, rng)


def _flip(file: str, content: bytes, rng: random.Random) -> Fault:
    """Change a few bytes, cut the file, or insert or repeat a part of it."""
    data, at, size = bytearray(content), rng.randrange(len(content) + 1), rng.choice([1, 1, 4, 64])
    kind = rng.choice(["flip", "cut", "insert", "delete", "repeat", "zero"])
    if kind == "flip" and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "insert":
        data[at:at] = rng.choice(
            [rng.randbytes(size), b"{", b"[", b'"', b"\n", b"-", b": ", b"&a ", b"*a", b"\x1b[2J"]
        )
    elif kind == "delete":
        del data[at : at + size]
    elif kind == "repeat":
        data[at:at] = data[max(at - size, 0) : at] * rng.choice([1, 50])
    else:
        data[at : at + size] = bytes(min(size, len(data) - at))
    return Fault(
        file, f"{kind} {size} at {at} -> {bytes(data[max(at - 10, 0) : at + 10])!r}", replace(bytes(data))
    )


def _nothing(_text: str, _rng: random.Random) -> Iterator[Change]:
    yield from ()


def _json(text: str, rng: random.Random) -> Iterator[Change]:
    """Replace, remove and add each value of a JSON document."""
    yield from _changed(json.loads(text), JSON, json.dumps, rng)


def _yaml(text: str, rng: random.Random) -> Iterator[Change]:
    yield from _changed(yaml.safe_load(text), [*JSON, *YAML], partial(yaml.safe_dump, width=10**6), rng)


def _lines(text: str, rng: random.Random) -> Iterator[Change]:
    """Change a row in the middle and the last one; tear the last line; change the order."""
    rows = text.splitlines()
    for place in (len(rows) // 2, len(rows) - 1):
        for what, row in _json(rows[place], rng):
            yield (
                f"row {place}: {what}",
                lambda n=place, row=row: "\n".join([*rows[:n], row(), *rows[n + 1 :], ""]),
            )
    yield "no last newline", lambda: "\n".join(rows)
    yield "reversed", lambda: "\n".join(reversed(rows)) + "\n"
    yield "each twice", lambda: "\n".join(row for row in rows for _ in range(2)) + "\n"
    yield "empty lines", lambda: "\n\n".join(rows) + "\n\n"
    metrics = {"num_updates": 1} | {f"val/{n}": n for n in range(3000)}
    yield "only a line of many metrics", lambda: json.dumps(metrics) + "\n"
    for end in ('{"num_upd', "\x00\x00", "\udcff", '{"a": "\x1b[2J', "[" * 100_000):
        yield f"torn by {end[:10]!r}", lambda end=end: "\n".join(rows) + "\n" + end


_NUM_FLIPS = 60  # of each file
_MAX_PLACES = 60  # of a document
_MARK = "the value to replace"


def _changed(
    value: Any, values: list[str], dump: Callable[[Any], str], rng: random.Random
) -> Iterator[Change]:
    """Yield a document for each place of the value and each of a sample of values to put there."""

    def changed(path: Sequence[Any], new: object, odd: str = "") -> str:
        text = dump(_put(value, path, new))
        for quoted in (f'"{_MARK}"', f"'{_MARK}'", _MARK):
            text = text.replace(quoted, odd, 1)
        return text

    places = list(_places(value))
    for path in sorted(rng.sample(places, min(_MAX_PLACES, len(places))), key=str):
        name = ".".join(map(str, path)) or "all"

        for odd in rng.sample(values, min(6, len(values))):
            yield f"{name} = {odd[:30]}", partial(changed, path, _MARK, odd)
        if path:
            yield f"without {name}", partial(changed, path, _GONE)
        if path and isinstance(path[-1], str):
            for key in ("\x1b]0;title\x07", "=1+1", "", "a.b", "val/x"):
                yield f"{key!r} beside {name}", partial(changed, [*path[:-1], key], 1.0)


_GONE = object()


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _put(value: Any, path: Any, new: Any) -> Any:
    if not path:
        return new
    key, *rest = path
    changed = dict(value) if isinstance(value, dict) else list(value)
    if new is _GONE and not rest:
        del changed[key]
    else:
        changed[key] = _put(value[key] if rest else None, rest, new)
    return changed
