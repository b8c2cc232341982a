"""A small corpus that is always there: the documentation strings of this Python installation, as tokens of bytes.

A run writes it to `FOLDER` when it begins to train, and later runs read it there. Until then it is made in memory, so
that no file is left where somebody only looks at a config.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from hydrant.data.token_files import VOCABULARY, TokenFile, Vocabulary
from hydrant.data.token_writer import MAX_SHARD_TOKENS, TokenWriter, new_folder
from hydrant.errors import ConfigError

FOLDER = Path("data/docstrings")
"""Where the corpus is, relative to the current folder."""

BYTES = Vocabulary("bytes", 257, 256, "end", (*[1] * 256, 0))
"""A token for each byte of UTF-8, and a separator."""

_OTHERS = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"})
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
        message = f"{library} has no sources of Python's library; give data.root a folder of hydrant tokenize"
        raise ConfigError("data.root", message)
    return {f"{split}_000000.bin": _tokens(texts) for split, texts in documents.items()}


def write_corpus(files: Iterable[TokenFile]) -> None:
    """Write the folder of the corpus, if some of these files are only in memory. Another process may do so too.

    Raises:
        ConfigError: the folder cannot be written.
    """
    if all(file.in_memory is None for file in files):
        return
    try:
        with new_folder(FOLDER) as temporary:
            for name, tokens in corpus().items():
                with TokenWriter(temporary, name.partition("_")[0], BYTES.dtype, MAX_SHARD_TOKENS) as writer:
                    writer.write(tokens)
            BYTES.write(temporary)
    except OSError as error:
        if not (FOLDER / VOCABULARY).is_file():  # else another process has made the same folder meanwhile
            message = f"{FOLDER} cannot be written ({error.strerror or error}); give a folder of tokens"
            raise ConfigError("data.root", message) from error


def _tokens(documents: Iterable[bytes]) -> np.ndarray:
    """Return the bytes of documents, with the separator after each: uint16."""
    parts = [np.array([*document, BYTES.separator], BYTES.dtype) for document in documents]
    return np.concatenate(parts)


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
