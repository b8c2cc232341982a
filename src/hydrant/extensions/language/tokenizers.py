"""Tokenizers: text to the ids of tokens and back; and `tokenize`, which makes the files of data=tokens from text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Interval

from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError, DataError, typed_line
from hydrant.extensions.language import token_files
from hydrant.files.on_disk import encoding_error, visible_files
from hydrant.files.plain_values import BetweenZeroAndOne, check_value
from hydrant.installation import require_extra
from hydrant.records import Answer
from hydrant.terminal.console import show_activity, tell

SEPARATOR_TEXT = "<|endoftext|>"
"""The text of the separator between documents, as in the encodings of tiktoken."""


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    @property
    def vocabulary(self) -> token_files.Vocabulary: ...

    def encode(self, text: str) -> Sequence[int] | np.ndarray:
        """Return the tokens of a text, without separators.

        Raises:
            ConfigError: the vocabulary has no token for it.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens. Bytes that are no UTF-8 become U+FFFD."""
        ...

    def last_cut(self, text: str) -> int:
        """Return the last place where a text can be cut so that its parts have the tokens of the whole; 0: none."""
        ...


class BytesTokenizer:
    """A token for each byte of UTF-8, and 256 as the separator.

    >>> BytesTokenizer().encode("né").tolist(), BytesTokenizer().decode([110, 195, 169, 256])
    ([110, 195, 169], 'né<|endoftext|>')
    """

    vocabulary = token_files.BYTES

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        separator = SEPARATOR_TEXT.encode()
        parts = (separator if token >= token_files.BYTES.separator else bytes([token]) for token in ids)
        return b"".join(parts).decode(errors="replace")

    def last_cut(self, text: str) -> int:
        return len(text)


class CharTokenizer:
    """A token for each of these characters, in the order of their code points, and then the separator.

    >>> CharTokenizer("hello").encode("hole").tolist(), CharTokenizer("hello").vocabulary.size
    ([1, 3, 2, 0], 5)
    """

    def __init__(self, characters: Iterable[str]) -> None:
        self._characters = "".join(sorted(set(characters)))
        size = len(self._characters)
        sizes = (*(len(character.encode()) for character in self._characters), 0)
        self.vocabulary = token_files.Vocabulary("char", size + 1, size, "end", sizes, self._characters)
        self._codes = np.frombuffer(self._characters.encode("utf-32-le"), "<u4")

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
        ids = np.searchsorted(self._codes, codes)
        unknown = np.append(self._codes, 0)[ids] != codes
        if unknown.any():
            character = text[int(unknown.argmax())]
            message = (
                f"no token stands for {character!r}; the vocabulary has the characters of the tokenized texts"
            )
            raise ConfigError("data.root", message)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        texts = (*self._characters, SEPARATOR_TEXT)
        return "".join(texts[min(token, len(self._characters))] for token in ids)

    def last_cut(self, text: str) -> int:
        return len(text)


class TiktokenTokenizer:
    """An `Encoding` of tiktoken. Special tokens in a text are encoded as plain text."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        size, separator = encoding.n_vocab, encoding.eot_token
        without_text = {encoding.encode_single_token(text) for text in encoding.special_tokens_set}
        sizes = tuple(
            0 if token in without_text else len(_bytes_of(encoding, token)) for token in range(size)
        )
        self.vocabulary = token_files.Vocabulary(encoding.name, size, separator, "end", sizes)

    @classmethod
    def named(cls, name: str, key: str) -> TiktokenTokenizer:
        """Return an encoding by its name; tiktoken downloads it once.

        Raises:
            ConfigError: tiktoken is not installed, or there is no such encoding, or it cannot be downloaded.
        """
        require_extra("tiktoken", ("tiktoken",), key, name)
        import tiktoken

        try:
            return cls(tiktoken.get_encoding(name))
        except Exception as error:  # an unknown name, or whatever the download raises
            names = ", ".join(("bytes", "char", *tiktoken.list_encoding_names()))
            message = f"{name!r} cannot be loaded ({typed_line(error)})"
            raise ConfigError(key, message, remedy=f"there are {names}, downloaded on first use") from error

    def encode(self, text: str) -> Sequence[int]:
        return self._encoding.encode_ordinary(text)

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(_bytes_of(self._encoding, token) for token in ids).decode(errors="replace")

    def last_cut(self, text: str) -> int:
        return next((cut for start in (max(0, len(text) - 4096), 0) if (cut := _last_cut(text, start))), 0)


_CUT = re.compile(r"(?<=\S) |(?<=\S\n)(?=\w)")
"""Positions where the patterns of tiktoken's encodings always begin a new part, whatever text follows."""


def _last_cut(text: str, start: int) -> int:
    cuts = [match.start() for match in _CUT.finditer(text, start)]
    return cuts[-1] if cuts else 0


def _bytes_of(encoding: Any, token: int) -> bytes:
    try:
        return encoding.decode_single_token_bytes(token)
    except KeyError:  # no token has this number, such as those by which a model's embedding is larger
        return b""


def make_tokenizer(vocabulary: token_files.Vocabulary) -> Tokenizer:
    """Return the tokenizer that a vocabulary names.

    Raises:
        ConfigError: it cannot be loaded.
    """
    match vocabulary.encoding:
        case "bytes":
            return BytesTokenizer()
        case "char":
            return CharTokenizer(vocabulary.characters or "")
        case name:
            return TiktokenTokenizer.named(name, "data.root")


_CHUNK_BYTES = 2**22  # read at once


class Tokens(Answer):
    """The tokens of a split."""

    num_tokens: int
    num_files: int


class Tokenize(Answer):
    """The folder of tokens.

    Attributes:
        splits: `train` and `val`.
        overrides: They train on these tokens.
    """

    folder: str
    splits: Mapping[str, Tokens]
    vocabulary_size: int
    overrides: Sequence[str]


@dataclass(frozen=True)
class Part:
    """The bytes `[start, end)` of a text file."""

    path: Path
    start: int
    end: int

    def texts(self) -> Iterator[str]:
        """Yield its text in chunks.

        Raises:
            DataError: it is no UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8" if self.start else "utf-8-sig")()
        with self.path.open("rb") as file:
            file.seek(self.start)
            for position in range(self.start, self.end, _CHUNK_BYTES):
                chunk = file.read(min(_CHUNK_BYTES, self.end - position))
                try:
                    yield decoder.decode(chunk, final=position + _CHUNK_BYTES >= self.end)
                except UnicodeDecodeError as error:
                    raise DataError(encoding_error(self.path)) from error


def main(arguments: Sequence[str]) -> int:
    """Write a folder of tokens and return the exit status."""
    defaults = {"encoding": "bytes", "val": 0.1, "shard_size": 100_000_000, "suffixes": ".txt,.md,.rst"}
    options, words = Flags("tokenize", out=Path, **defaults).split(arguments)
    if not words or options.out is None:
        example = "hydrant tokenize texts/ --out data/texts"
        raise ConfigError("", "tokenize what?", remedy=f"Give texts and a folder: {example}")
    check_value("--val", BetweenZeroAndOne, options.val)
    check_value(
        "--shard-size", Annotated[int, Interval(ge=1, le=token_files.MAX_SHARD_TOKENS)], options.shard_size
    )
    if options.out.exists():
        raise ConfigError("--out", f"{options.out} exists", remedy="remove it, or give another folder")
    files = _text_files(words, tuple(options.suffixes.split(",")))
    splits = _split(files, options.val)
    tokenizer = _tokenizer(options.encoding, [*splits["train"], *splits["val"]])
    try:
        with token_files.new_folder(options.out) as folder:
            size = options.shard_size
            counts = {name: _write(folder, name, parts, tokenizer, size) for name, parts in splits.items()}
            tokenizer.vocabulary.write(folder)
    except OSError as error:
        message = f"{options.out} cannot be written ({error.strerror or error})"
        raise ConfigError("--out", message, remedy="give another folder") from error
    size, overrides = tokenizer.vocabulary.size, ["data=tokens", f"data.root={options.out}"]
    written = {name: {"num_tokens": num, "num_files": files} for name, (num, files) in counts.items()}
    content = {"folder": str(options.out), "splits": written, "vocabulary_size": size, "overrides": overrides}
    parts = [f"{num:,} {name} tokens in {n} file{'s' * (n != 1)}" for name, (num, n) in counts.items()]
    text = f"{options.out}: {', '.join(parts)}; a vocabulary of {size:,}"
    tell(f"{text}. Train on them: {' '.join(overrides)}", content)
    return 0


def _text_files(words: Sequence[str], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files that the words name, and those with these suffixes in the folders that they name, by name.

    Raises:
        ConfigError: there is no such file.
    """
    files = list[Path]()
    for word in words:
        path = Path(word)
        paths = visible_files(path, lambda file: Path(file).suffix in suffixes and Path(file).is_file())
        texts = sorted(map(Path, paths))
        if not path.is_file() and not path.is_dir():
            raise ConfigError("", f"{word} does not exist")
        if path.is_dir() and not texts:
            raise ConfigError("", f"{word} has no files that end in {', '.join(suffixes)} (--suffixes)")
        files += texts if path.is_dir() else [path]
    return files


def _split(files: Sequence[Path], val: float) -> dict[str, list[Part]]:
    """Return the parts of each split. The last part of all bytes, the ratio `val`, validates. Lines are not divided.

    Raises:
        ConfigError: a split is empty.
    """
    sizes = [path.stat().st_size for path in files]
    left = sum(sizes) - round(val * sum(sizes))  # bytes for training
    splits: dict[str, list[Part]] = {"train": [], "val": []}
    for path, size in zip(files, sizes, strict=True):
        cut = size if left >= size else _line_end(path, left, size) if left > 0 else 0
        splits["train"] += [Part(path, 0, cut)] if cut else []
        splits["val"] += [Part(path, cut, size)] if cut < size else []
        left -= size
    for name, parts in splits.items():
        if not parts:
            message = f"{val:g} leaves no text to {'train' if name == 'train' else 'validate'} on"
            raise ConfigError("--val", message, remedy="only whole lines go to a set")
    return splits


def _line_end(path: Path, position: int, size: int) -> int:
    """Return where the line that holds this byte ends."""
    with path.open("rb") as file:
        file.seek(position)
        for start in range(position, size, _CHUNK_BYTES):
            if (newline := file.read(_CHUNK_BYTES).find(b"\n")) >= 0:
                return start + newline + 1
    return size


def _tokenizer(encoding: str, parts: Sequence[Part]) -> Tokenizer:
    if encoding == "bytes":
        return BytesTokenizer()
    if encoding != "char":
        return TiktokenTokenizer.named(encoding, "--encoding")
    characters = set[str]()
    for part in parts:
        for text in part.texts():
            characters.update(text)
    return CharTokenizer(characters)


def _write(
    folder: Path, split: str, parts: Sequence[Part], tokenizer: Tokenizer, shard_size: int
) -> tuple[int, int]:
    """Write the tokens of a split, one document per part, and return the number of tokens and of files."""
    vocabulary = tokenizer.vocabulary

    def tokens() -> Iterator[np.ndarray]:
        for number, part in enumerate(parts, start=1):
            show_activity(f"{split}, file {number:,} of {len(parts):,}")
            for text in _cut(part.texts(), tokenizer):
                yield np.asarray(tokenizer.encode(text))
            yield np.array([vocabulary.separator])

    return token_files.write_tokens(folder, split, vocabulary.dtype, tokens(), shard_size)


def _cut(texts: Iterator[str], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the same text in parts that give the same tokens as the whole."""
    rest = ""
    for text in texts:
        rest += text
        cut = tokenizer.last_cut(rest)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest
