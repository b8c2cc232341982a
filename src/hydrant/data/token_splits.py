"""The files of each split of data=tokens, and the settings of the config that they decide. Imports no torch.

By default they are a small corpus that is always there: the documentation strings of this Python installation, as
tokens of bytes. A run writes it to `FOLDER` when it begins to train, and later runs read it there. Until then it is
made in memory, so that no file is left where somebody only looks at a config.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrant.data import token_files
from hydrant.data.token_files import BYTES
from hydrant.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


FOLDER = Path("data/docstrings")
"""Where the corpus is, relative to the current folder."""

_LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"})
"""Folders of the standard library that are no modules for users, and those of installed packages."""

_VAL_EVERY = 10  # modules

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDERS = (*_DOCUMENTED, ast.If, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With)
"""Statements that are documented or hold such statements."""


def is_unwritten(root: str | Path) -> bool:
    """Return whether a folder is that of the corpus, and no run has written it yet."""
    return Path(root) == FOLDER and not FOLDER.exists()


@functools.cache
def corpus() -> Mapping[str, np.ndarray]:
    """Return the tokens of the documentation strings of the standard library, by the name of their file.

    Each string is a document: its bytes of UTF-8, without indentation, and the separator. Every tenth module is in the
    validation set. A string that occurs again is left out. The modules are read, not imported.

    Raises:
        ConfigError: the installation has no sources.
    """
    library, seen = Path(sysconfig.get_path("stdlib")), set[str]()
    documents = {"train": list[bytes](), "val": list[bytes]()}
    for number, module in enumerate(_modules(library)):
        split = "val" if number % _VAL_EVERY == _VAL_EVERY - 1 else "train"
        new = dict.fromkeys(text for text in docstrings(module.read_bytes()) if text not in seen)
        seen.update(new)
        documents[split] += [text.encode(errors="replace") for text in new]
    if not all(documents.values()):
        message = f"{library} has no sources of Python's library"
        raise ConfigError("data.root", message, remedy="give data.root a folder of hydrant tokenize")
    return {f"{split}_000000.bin": _tokens(texts) for split, texts in documents.items()}


def write_corpus(files: Iterable[token_files.TokenFile]) -> None:
    """Write the folder of the corpus, if some of these files are only in memory. Another process may do so too.

    Raises:
        ConfigError: the folder cannot be written.
    """
    if all(file.in_memory is None for file in files):
        return
    try:
        with token_files.new_folder(FOLDER) as temporary:
            for name, tokens in corpus().items():
                token_files.write_tokens(temporary, name.partition("_")[0], BYTES.dtype, [tokens])
            BYTES.write(temporary)
    except OSError as error:
        # Another process may have made the same folder meanwhile.
        if not (FOLDER / token_files.VOCABULARY).is_file():
            message = f"{FOLDER} cannot be written ({error.strerror or error})"
            raise ConfigError("data.root", message, remedy="give a folder of tokens") from error


def _tokens(documents: Iterable[bytes]) -> np.ndarray:
    """Return the bytes of documents, with the separator after each: uint16."""
    return np.concatenate([np.array([*document, BYTES.separator], BYTES.dtype) for document in documents])


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the modules in a folder and below, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _LEFT_OUT:
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the documentation strings of a module, its classes and functions, in the order of the source.

    Functions inside functions are left out.

    >>> list(docstrings(b'"What it is for."\\ndef double(x):\\n    "Return `2 * x`."\\n    return 2 * x'))
    ['What it is for.', 'Return `2 * x`.']
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # about the escapes in old strings
            module = ast.parse(source)
    except (SyntaxError, ValueError):  # a template, or a test of the parser
        return
    yield from _of(module)


def _of(node: ast.AST) -> Iterator[str]:
    """Yield the strings of a node and of the statements in it, but those inside functions."""
    if isinstance(node, _DOCUMENTED):
        text = ast.get_docstring(node, clean=False)
        if text and (cleaned := inspect.cleandoc(text)):
            yield cleaned
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for field in ("body", "handlers", "orelse", "finalbody"):
            for statement in getattr(node, field, ()):
                if isinstance(statement, _HOLDERS):
                    yield from _of(statement)


def splits_of(settings: Any) -> dict[str, tuple[token_files.TokenFile, ...]]:
    """Return the files of each split by `train`, `val`, `test` or `extra_val.<name>`.

    `settings` is a mapping with keys of conf/data/tokens.yaml.

    Raises:
        ConfigError: a pattern names no file.
        DataError: a file holds no tokens.
    """
    patterns = {name: settings[name] for name in ("train", "val", "test") if settings[name] is not None}
    patterns |= {f"extra_val.{name}": pattern for name, pattern in settings["extra_val"].items()}
    root, dtype = settings["root"], settings["dtype"]
    find = _corpus_files if is_unwritten(root) else token_files.token_files
    return {name: find(root, pattern, dtype, f"data.{name}") for name, pattern in patterns.items()}


def _corpus_files(
    root: str, patterns: str | Sequence[str], dtype: str | None, key: str
) -> tuple[token_files.TokenFile, ...]:
    """Return the files of the corpus that will have these names, as `token_files` returns them later."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    matches = {pattern: matching(corpus(), pattern) for pattern in listed}
    missing = [pattern for pattern, names in matches.items() if not names]
    if missing or not matches:
        return token_files.token_files(root, missing, dtype, key)  # it says what is missing
    tokens = {Path(root, name): corpus()[name] for names in matches.values() for name in names}
    return tuple(
        token_files.TokenFile(path, t.dtype, 4 * token_files.HEADER, len(t), in_memory=t)
        for path, t in tokens.items()
    )


def vocabulary_of(folder: Path) -> token_files.Vocabulary | None:
    """Return the vocabulary of a folder of tokens; None if it has no `tokens.json`.

    Raises:
        DataError: the file is damaged.
    """
    return BYTES if is_unwritten(folder) else token_files.read_vocabulary(folder)


def tokens_setting(name: str, *, _parent_: DictConfig) -> int | str | None:
    """Return a setting of data=tokens that its files decide: the fingerprint, or a field of the vocabulary.

    A field is null if the folder has no `tokens.json`.

    Raises:
        ConfigError: this field is the size.
    """
    if name == "fingerprint":
        return token_files.fingerprint(splits_of(_parent_))
    folder = Path(_parent_["root"])
    # A config whose vocabulary is given can be composed and shown without its files.
    with contextlib.nullcontext() if name == "size" else contextlib.suppress(ConfigError):
        folder = token_files.vocabulary_folder(str(folder), splits_of(_parent_))
    vocabulary = vocabulary_of(folder)
    if vocabulary is None and name == "size":
        raise token_files.size_unknown(folder)
    return None if vocabulary is None else getattr(vocabulary, name)
