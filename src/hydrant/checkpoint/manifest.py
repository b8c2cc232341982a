"""What a checkpoint's folder must hold, file by file, so that damage is seen before anything is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.errors import CheckpointError, first_line

MANIFEST = "manifest.json"

# Bytes. After each, the thread that writes asks for the interpreter, which training holds: with `hashlib.file_digest`,
# which reads 256 KiB at once, that takes ten times as long as to hash, and training is interrupted as often.
_PIECE = 2**23


def seal(file: Path) -> dict[str, Any]:
    """Flush a file to disk; its entry in the manifest."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return {"size": os.fstat(opened.fileno()).st_size, "sha256": _digest(file)}


def write_text(file: Path, text: str) -> dict[str, Any]:
    """Write a file; its entry in the manifest."""
    file.write_text(text, encoding="utf-8")
    return seal(file)


def write_manifest(folder: Path, notes: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    write_text(folder / MANIFEST, json.dumps({**notes, "files": files}, indent=1) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        entries = {str(name): (int(e["size"]), str(e["sha256"])) for name, e in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read ({first_line(error)})") from error
    strange = next((name for name in entries if Path(name).name != name), None)
    if strange is not None:
        raise CheckpointError(f"{file} names {strange!r}, which is no file of the checkpoint")
    return manifest


def damage(folder: Path) -> str:
    """What is wrong with the files of a checkpoint; "" where it is whole."""
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
                return f"{file} holds other bytes than were written"
        except OSError as error:
            return f"{file} cannot be read ({error.strerror})"
    return ""


def check_whole(folder: Path) -> None:
    """Raises CheckpointError where a file of the checkpoint is missing or damaged."""
    found = damage(folder)
    if found:
        raise CheckpointError(f"{found}; remove {folder} to use an older one")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as opened:
        piece = memoryview(bytearray(min(_PIECE, os.fstat(opened.fileno()).st_size) or 1))
        while size := opened.readinto(piece):
            digest.update(piece[:size])
    return digest.hexdigest()
