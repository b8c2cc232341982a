"""Write a file as a whole: after a kill, the path holds either the old content or the new one."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.config.redaction import redacted


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically. Secrets are redacted, NaN and infinity become `null`.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    replace_file(path, json.dumps(redacted(json_safe(value)), indent=2) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Replace a text file atomically: write a temporary file beside it, flush it to disk, rename it.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def json_safe(value: Any) -> Any:
    """Return `value` with every NaN and infinity replaced by None, because JSON has neither."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: json_safe(item) for key, item in value.items()}
        case list() | tuple():
            return [json_safe(item) for item in value]
        case _:
            return value
