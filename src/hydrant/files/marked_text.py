"""Read texts that users have written with any editor."""

from __future__ import annotations

from pathlib import Path


def read_marked(file: Path, errors: str = "strict") -> str:
    """Return the text of a file in UTF-8 without byte order marks. Programs that join files leave several of them.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8, and `errors` is `strict`.
    """
    return file.read_text(encoding="utf-8", errors=errors).lstrip("\ufeff")
