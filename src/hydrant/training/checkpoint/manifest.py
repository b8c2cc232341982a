"""The manifest of a checkpoint: size and SHA-256 of each file, to detect damage before anything is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydrant.errors import CheckpointError, shown, typed_line
from hydrant.files.regular_file import check_regular

MANIFEST = "manifest.json"
TRAINING = "training.json"  # every checkpoint has it

_MOST = 10**18 - 1
"""The largest count in a checkpoint. It fits into 64 bits, as do sums of a few."""

_CHUNK_BYTES = 2**23
"""Bytes hashed at once. After each chunk, the saving thread waits for the GIL, which training holds. With the chunks of
`hashlib.file_digest`, 256 KiB, it waits ten times as long as it hashes, and it interrupts training as often."""


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint's manifest."""

    num_updates: int
    is_best: bool
    rows: Mapping[str, int]  # the number of lines of metrics.jsonl and other files of the run, by name
    files: Mapping[str, tuple[int, str]]  # size and SHA-256 by name


def folder_name(num_updates: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"update_{num_updates:08d}"


def count(value: Any) -> int:
    """Return a number that was read from a file of a checkpoint.

    Raises:
        ValueError: it is no count.
    """
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{shown(value):.60} is no count")
    return value


def seal(file: Path) -> dict[str, Any]:
    """Flush a file to disk and return its entry in the manifest."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return {"size": os.fstat(opened.fileno()).st_size, "sha256": _digest(file)}


def write_text(file: Path, text: str) -> dict[str, Any]:
    """Write a file, flush it to disk and return its entry in the manifest."""
    file.write_text(text, encoding="utf-8")
    return seal(file)


def write_manifest(folder: Path, notes: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Write the manifest of a checkpoint: `notes` such as `is_best`, and the entries of its files."""
    write_text(folder / MANIFEST, json.dumps({**notes, "files": files}, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = folder / MANIFEST
    try:
        check_regular(file)
        content = json.loads(file.read_text(encoding="utf-8"))
        manifest = Manifest(
            num_updates=count(content["num_updates"]),
            is_best=bool(content["is_best"]),
            rows={name: count(number) for name, number in content.get("rows", {}).items()},
            files={name: (count(e["size"]), str(e["sha256"])) for name, e in content["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({typed_line(error)})") from error
    is_inside = {name: Path(name).name == name and name.isprintable() for name in manifest.files}
    outside = next((name for name in manifest.files if not is_inside[name]), None)
    if outside is not None:
        raise CheckpointError(f"{file} names {outside!r}, which is not a file of the checkpoint")
    if TRAINING not in manifest.files:
        raise CheckpointError(f"{file} names no {TRAINING}")
    return manifest


def find_damage(folder: Path) -> str:
    """Return what is wrong with the files of a checkpoint; "" if nothing is."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return str(error)
    name = folder_name(manifest.num_updates)
    if folder.name.startswith("update_") and folder.name != name:
        return f"{folder} was renamed: its manifest is that of {name}"
    for name, (saved_size, sha256) in manifest.files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != saved_size:
                return f"{file} has {size} bytes instead of {saved_size}"
            if _digest(file) != sha256:
                return f"{file} does not have the SHA-256 of its manifest"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return ""


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        chunk = memoryview(bytearray(min(_CHUNK_BYTES, os.fstat(opened.fileno()).st_size) or 1))
        while size := opened.readinto(chunk):
            digest.update(chunk[:size])
    return digest.hexdigest()
