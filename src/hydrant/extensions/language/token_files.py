"""Files of tokens and their vocabulary, and the settings of the config that they decide. Imports no torch.

Tokens are written into a folder that appears when it is complete. By default the files of a split are a small corpus
that is always there: the documentation strings of this Python installation, as tokens of bytes. It is made in memory.
"""

from __future__ import annotations

import ast
import functools
import glob
import hashlib
import inspect
import json
import os
import sysconfig
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import filter as matching
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hydrant.errors import ConfigError, DataError, typed_line
from hydrant.files.on_disk import BLOCK_BYTES, SMALL, block_starts, check_regular, remove, sync

if TYPE_CHECKING:
    from omegaconf import DictConfig


VOCABULARY = "tokens.json"
"""The file in a folder of tokens that describes their vocabulary."""

HEADER = 256
"""The header of a `.bin` file, int32: magic number, version, number of tokens, and zeros."""

MAGIC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
"""The magic number and the version in the header of the files of llm.c and modded-nanogpt, by the type of a token."""

Position = Literal["start", "end"]
"""The position of the separator in a document."""


@dataclass(frozen=True)
class TokenFile:
    """Tokens in a file: whole numbers in a row."""

    path: Path
    dtype: np.dtype
    offset: int  # bytes before the first token
    num_tokens: int
    # The tokens, if it is a file of the corpus.
    in_memory: np.ndarray | None = field(default=None, compare=False)

    def mapped(self) -> np.ndarray:
        """Return the tokens, (num_tokens,), which stay on disk until they are used."""
        if self.in_memory is not None:
            return self.in_memory
        mapped = np.memmap(self.path, self.dtype, "r", self.offset, (self.num_tokens,))
        return np.asarray(mapped)  # slices of a memmap take ten times as long


@dataclass(frozen=True)
class Vocabulary:
    """The vocabulary of tokens: the content of `tokens.json`.

    Args:
        encoding: what turns text into tokens: `bytes`, `char` or the name of an encoding of tiktoken.
        size: ids are below it.
        separator: the token between two documents.
        separator_position: whether it is the last token of a document, or the first.
        token_bytes: how many bytes of UTF-8 each token stands for; 0 for special tokens.
        characters: of the encoding `char`, in the order of their ids.
    """

    encoding: str
    size: int
    separator: int
    separator_position: Position
    token_bytes: Sequence[int]
    characters: str | None = None

    @property
    def dtype(self) -> str:
        """The smallest type of `MAGIC` that holds every id."""
        return "uint16" if self.size <= 2**16 else "uint32"

    def write(self, folder: Path) -> None:
        """Write `tokens.json` into a folder."""
        (folder / VOCABULARY).write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


BYTES = Vocabulary("bytes", 257, 256, "end", (*[1] * 256, 0))
"""A token for each byte of UTF-8, and a separator."""


def read_vocabulary(root: Path) -> Vocabulary | None:
    """Return the vocabulary of a folder of tokens; None if it has no `tokens.json`.

    Raises:
        DataError: the file is damaged.
    """
    file = root / VOCABULARY
    try:
        check_regular(file)
        return Vocabulary(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{file} cannot be read: {typed_line(error)}") from error


def vocabulary_folder(root: str, splits: Mapping[str, Sequence[TokenFile]]) -> Path:
    """Return the folder whose `tokens.json` describes these files: `root`, or theirs if they lie elsewhere."""
    parents = [file.path.parent for files in splits.values() for file in files]
    if any(parent.is_relative_to(root) for parent in parents):
        return Path(root)
    return parents[0]


def size_unknown(folder: Path) -> ConfigError:
    """Return the error about files without a vocabulary."""
    message = (
        f"{folder} has no tokens.json, so give the number of tokens in the vocabulary, such as 50257 of GPT-2"
    )
    return ConfigError("data.vocab_size", message)


def token_files(
    root: str, patterns: str | Sequence[str], dtype: str | None, key: str
) -> tuple[TokenFile, ...]:
    """Return the files that paths or globs name, relative to `root`; those of a glob by name.

    Args:
        dtype: of the tokens in `.bin` files without a header; None: there are none.
        key: the config key of the patterns.

    Raises:
        ConfigError: a pattern names no file, or `dtype` is needed.
        DataError: a file holds no tokens.
    """
    paths = list[Path]()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        path = Path(root, pattern)
        matches = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(path)))  # noqa: PTH207  # absolute
        if not matches or path.is_dir():
            reason = "is a folder; add /*.bin" if matches else "names no file"
            raise ConfigError(key, f"{path} {reason}", remedy="hydrant tokenize makes such files of text")
        paths += matches
    if not paths:
        raise ConfigError(key, needs="a file of tokens, a glob such as train_*.bin, or a list of them")
    return tuple(_read_layout(path, dtype) for path in paths)


def _read_layout(path: Path, dtype: str | None) -> TokenFile:
    """Return where the tokens of a file are.

    Raises:
        DataError: it holds none.
    """
    try:
        check_regular(path)
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise DataError(
                    f"{path} holds {array.dtype} of shape {array.shape}, but tokens are whole numbers (N,)"
                )
            file = TokenFile(path, array.dtype, array.offset, len(array))
        else:
            file = _read_bin(path, dtype)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {typed_line(error)}") from error
    if not file.num_tokens:
        raise DataError(f"{path} has no tokens")
    return file


def _read_bin(path: Path, dtype: str | None) -> TokenFile:
    size, header = path.stat().st_size, np.fromfile(path, "<i4", HEADER)
    names = {numbers: name for name, numbers in MAGIC.items()}
    name = names.get((header[0], header[1])) if len(header) == HEADER else None
    offset = 4 * HEADER if name else 0
    if (kind := name or dtype) is None:
        message = f"{path} has no header, which would tell the type of its tokens"
        raise ConfigError("data.dtype", message, remedy="give uint16, as nanoGPT writes them, or uint32")
    item = np.dtype(kind).newbyteorder("<")
    num_tokens = int(header[2]) if name else size // item.itemsize
    if (expected := offset + num_tokens * item.itemsize) != size:
        message = f"{path} has {size:,} bytes, but {num_tokens:,} tokens of {kind} take {expected:,}"
        raise DataError(message, remedy="is it cut off?")
    return TokenFile(path, item, offset, num_tokens)


def fingerprint(splits: Mapping[str, Sequence[TokenFile]]) -> str:
    """Return a hash of the tokens of all splits, which tells whether they have changed.

    Of a large file it reads 16 blocks that are spread evenly, so it takes milliseconds.
    """
    digest = hashlib.sha256()
    for split, files in splits.items():
        for file in files:
            digest.update(f"{split} {file.num_tokens} {file.dtype.str}\n".encode())
            content = file.mapped().view(np.uint8)
            size = len(content) if len(content) <= SMALL else BLOCK_BYTES
            for start in block_starts(len(content)):
                digest.update(content[start : start + size].tobytes())
    return digest.hexdigest()[:16]


MAX_SHARD_TOKENS = 2**31 - 1
"""The largest number of tokens in a file, because the header counts them by an int32."""


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """Yield a temporary folder that becomes `folder` at the end of the block. If the block raises, it is removed.

    What a kill has left of it is removed.

    Raises:
        OSError: it cannot be made, or `folder` holds something.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    remove(temporary)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        temporary.rename(folder)
    finally:
        remove(temporary)


def write_tokens(
    folder: Path, split: str, dtype: str, parts: Iterable[np.ndarray], shard_size: int = MAX_SHARD_TOKENS
) -> tuple[int, int]:
    """Write the tokens of a split into files `<split>_000000.bin` and so on, each with a header.

    Args:
        folder: the folder of the files.
        split: `train` or `val`.
        dtype: a type of `MAGIC`.
        parts: the tokens, whole numbers of shape (N,) each.
        shard_size: how many tokens a file holds; the last one may hold fewer.

    Returns:
        The number of tokens and of files.
    """
    num_tokens, header = 0, np.zeros(HEADER, dtype="<i4")
    for part in parts:
        rest = part
        while len(rest):
            number, num_before = divmod(num_tokens, shard_size)
            tokens, rest = np.split(rest, [shard_size - num_before])
            header[:3] = *MAGIC[dtype], num_before + len(tokens)
            path = folder / f"{split}_{number:06}.bin"
            with path.open("r+b" if num_before else "wb") as file:
                file.write(header.tobytes())
                file.seek(0, os.SEEK_END)
                file.write(tokens.astype(np.dtype(dtype).newbyteorder("<")).tobytes())
            num_tokens += len(tokens)
    return num_tokens, -(-num_tokens // shard_size)


FOLDER = Path("data/docstrings")
"""The folder that stands for the corpus while it does not exist, relative to the current one."""

_LEFT_OUT = frozenset({"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"})
"""Folders of the standard library that are no modules for users, and those of installed packages."""

_VAL_EVERY = 10  # modules

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDERS = (*_DOCUMENTED, ast.If, ast.Try, ast.TryStar, ast.ExceptHandler, ast.With)
"""Statements that are documented or hold such statements."""


def is_corpus(root: str | Path) -> bool:
    """Return whether a folder stands for the corpus."""
    return Path(root) == FOLDER and not FOLDER.exists()


@functools.cache
def corpus() -> Mapping[str, np.ndarray]:
    """Return the tokens of the documentation strings of the standard library, by the name of their file.

    Each string is a document: its bytes of UTF-8, without indentation, and the separator. Every tenth module is in the
    validation set. A string that occurs again is left out. The modules are read, not imported.
    """
    library, seen = Path(sysconfig.get_path("stdlib")), set[str]()
    documents = {"train": list[bytes](), "val": list[bytes]()}
    for number, module in enumerate(_modules(library)):
        split = "val" if number % _VAL_EVERY == _VAL_EVERY - 1 else "train"
        new = dict.fromkeys(text for text in docstrings(module.read_bytes()) if text not in seen)
        seen.update(new)
        documents[split] += [text.encode(errors="replace") for text in new]
    return {
        f"{split}_000000.bin": np.concatenate(
            [np.array([*text, BYTES.separator], BYTES.dtype) for text in texts]
        )
        for split, texts in documents.items()
    }


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
    find = _corpus_files if is_corpus(root) else token_files
    return {name: find(root, pattern, dtype, f"data.{name}") for name, pattern in patterns.items()}


def _corpus_files(
    root: str, patterns: str | Sequence[str], dtype: str | None, key: str
) -> tuple[TokenFile, ...]:
    """Return the files of the corpus of these names, as `token_files` returns those of a folder."""
    listed = [patterns] if isinstance(patterns, str) else patterns
    matches = {pattern: matching(corpus(), pattern) for pattern in listed}
    missing = [pattern for pattern, names in matches.items() if not names]
    if missing or not matches:
        return token_files(root, missing, dtype, key)  # it says what is missing
    tokens = {Path(root, name): corpus()[name] for names in matches.values() for name in names}
    return tuple(TokenFile(path, t.dtype, 4 * HEADER, len(t), in_memory=t) for path, t in tokens.items())


def vocabulary_of(folder: Path) -> Vocabulary | None:
    """Return the vocabulary of a folder of tokens; None if it has no `tokens.json`.

    Raises:
        DataError: the file is damaged.
    """
    return BYTES if is_corpus(folder) else read_vocabulary(folder)


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
    with nullcontext() if name == "size" else suppress(ConfigError):
        folder = vocabulary_folder(str(folder), splits_of(_parent_))
    vocabulary = vocabulary_of(folder)
    if vocabulary is None and name == "size":
        raise size_unknown(folder)
    return None if vocabulary is None else getattr(vocabulary, name)
