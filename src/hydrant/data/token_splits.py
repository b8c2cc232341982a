"""The files of each split of data=tokens, and the settings of the config that they decide. Imports no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fnmatch import filter as matching
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.data.docstrings import BYTES, corpus, is_unwritten
from hydrant.data.token_files import (
    HEADER,
    TokenFile,
    Vocabulary,
    fingerprint,
    read_vocabulary,
    size_unknown,
    token_files,
    vocabulary_folder,
)
from hydrant.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def splits_of(settings: Any) -> dict[str, tuple[TokenFile, ...]]:
    """Return the files of each split by `train`, `val`, `test` or `extra_val.<name>`.

    `settings` is a mapping with keys of conf/data/tokens.yaml.

    Raises:
        ConfigError: a pattern names no file.
        DataError: a file holds no tokens.
    """
    patterns = {name: settings[name] for name in ("train", "val", "test") if settings[name] is not None}
    patterns |= {f"extra_val.{name}": pattern for name, pattern in settings["extra_val"].items()}
    root, dtype = settings["root"], settings["dtype"]
    find = _corpus_files if is_unwritten(root) else token_files
    return {name: find(root, pattern, dtype, f"data.{name}") for name, pattern in patterns.items()}


def _corpus_files(root: str, patterns: str | Sequence[str], dtype: str, key: str) -> tuple[TokenFile, ...]:
    """Return the files of the corpus that will have these names, as `token_files` returns them later."""
    found = {
        pattern: matching(corpus(), pattern)
        for pattern in ([patterns] if isinstance(patterns, str) else patterns)
    }
    missing = [pattern for pattern, names in found.items() if not names]
    if missing or not found:
        return token_files(root, missing, dtype, key)  # it says what is missing
    tokens = {Path(root, name): corpus()[name] for names in found.values() for name in names}
    return tuple(TokenFile(path, t.dtype, 4 * HEADER, len(t), in_memory=t) for path, t in tokens.items())


def vocabulary_of(folder: Path) -> Vocabulary | None:
    """Return the vocabulary of a folder of tokens; None if it has no `tokens.json`.

    Raises:
        DataError: the file is damaged.
    """
    return BYTES if is_unwritten(folder) else read_vocabulary(folder)


def tokens_setting(name: str, *, _parent_: DictConfig) -> int | str | None:
    """Return a setting of data=tokens that its files decide: the fingerprint, or a field of the vocabulary.

    A field is null if the folder has no `tokens.json`.

    Raises:
        ConfigError: this field is the size.
    """
    if name == "fingerprint":
        return fingerprint(splits_of(_parent_))
    folder = Path(_parent_["root"])
    # A config whose vocabulary is given can be composed and shown without its files.
    with contextlib.nullcontext() if name == "size" else contextlib.suppress(ConfigError):
        folder = vocabulary_folder(str(folder), splits_of(_parent_))
    vocabulary = vocabulary_of(folder)
    if vocabulary is None and name == "size":
        raise size_unknown(folder)
    return None if vocabulary is None else getattr(vocabulary, name)
