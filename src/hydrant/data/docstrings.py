"""A small corpus that is always there: the documentation strings of this Python installation, as tokens of bytes."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hydrant.data.token_files import VOCABULARY, Vocabulary
from hydrant.data.token_writer import MAX_SHARD_TOKENS, TokenWriter, new_folder
from hydrant.errors import ConfigError

BYTES = Vocabulary("bytes", 257, 256, "end", (*[1] * 256, 0))
"""A token for each byte of UTF-8, and a separator."""

_OTHERS = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"})
"""Folders of the standard library that are no modules for users, and those of installed packages."""

_VAL_EVERY = 10  # modules

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDERS = (*_DOCUMENTED, ast.If, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With)
"""Statements that are documented or hold such statements."""


def docstring_corpus(folder: str, *, _parent_: object = None) -> str:
    """Return a folder with the documentation strings of the standard library as tokens. Make it if it is missing.

    Each string is a document: its bytes of UTF-8, without indentation, and the separator. Every tenth module is in the
    validation set. A string that occurs again is left out. The modules are read, not imported.

    Raises:
        ConfigError: the installation has no sources, or the folder cannot be written.
    """
    root = Path(folder)
    if (root / VOCABULARY).is_file():
        return folder
    try:
        with new_folder(root) as temporary:
            _write(temporary)
    except OSError as error:
        if (root / VOCABULARY).is_file():  # another process has made the same folder meanwhile
            return folder
        message = f"{root} cannot be written ({error.strerror or error}); give a folder of tokens"
        raise ConfigError("data.root", message) from error
    return folder


def _write(folder: Path) -> None:
    library, seen = Path(sysconfig.get_path("stdlib")), set[str]()
    with (
        TokenWriter(folder, "train", BYTES.dtype, MAX_SHARD_TOKENS) as train,
        TokenWriter(folder, "val", BYTES.dtype, MAX_SHARD_TOKENS) as val,
    ):
        for number, module in enumerate(_modules(library)):
            writer = val if number % _VAL_EVERY == _VAL_EVERY - 1 else train
            new = dict.fromkeys(text for text in docstrings(module.read_bytes()) if text not in seen)
            seen.update(new)
            for text in new:
                writer.write(np.array([*text.encode(errors="replace"), BYTES.separator]))
    if not (train.num_tokens and val.num_tokens):
        message = f"{library} has no sources of Python's library; give data.root a folder of hydrant tokenize"
        raise ConfigError("data.root", message)
    BYTES.write(folder)


def _modules(folder: Path) -> Iterator[Path]:
    """Yield the modules in a folder and below, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _OTHERS:
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
