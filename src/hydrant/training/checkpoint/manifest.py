"""The manifest of a checkpoint: size and SHA-256 of each file, to detect damage before anything is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.errors import CheckpointError, first_line

MANIFEST = "manifest.json"

_CHUNK_BYTES = 2**23
"""Bytes hashed at once. After each chunk, the saving thread waits for the GIL, which training holds. With the chunks of
`hashlib.file_digest`, 256 KiB, it waits ten times as long as it hashes, and it interrupts training as often."""


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


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        entries = {str(name): (int(e["size"]), str(e["sha256"])) for name, e in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({first_line(error)})") from error
    outside = next((name for name in entries if Path(name).name != name), None)
    if outside is not None:
        raise CheckpointError(f"{file} names {outside!r}, which is not a file of the checkpoint")
    return manifest


def find_damage(folder: Path) -> str:
    """Return what is wrong with the files of a checkpoint; "" if nothing is."""
    try:
        files = read_manifest(folder)["files"]
    except CheckpointError as error:
        return str(error)
    for name, entry in files.items():
        file = folder / name
        try:
            size = file.stat().st_size
            if size != entry["size"]:
                return f"{file} has {size} bytes instead of {entry['size']}"
            if _digest(file) != entry["sha256"]:
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
