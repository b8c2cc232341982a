"""Tokenizers: text to the ids of tokens and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hydrant.errors import ConfigError, typed_line
from hydrant.extensions.language.token_files import BYTES, Vocabulary
from hydrant.installation import require_extra

SEPARATOR_TEXT = "<|endoftext|>"
"""The text of the separator between documents, as in the encodings of tiktoken."""


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    @property
    def vocabulary(self) -> Vocabulary: ...

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

    vocabulary = BYTES

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        separator = SEPARATOR_TEXT.encode()
        parts = (separator if token >= BYTES.separator else bytes([token]) for token in ids)
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
        self.vocabulary = Vocabulary("char", size + 1, size, "end", sizes, self._characters)
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
        special = encoding.special_tokens_set
        without_text = {encoding.encode_single_token(text) for text in special}
        sizes = tuple(
            0 if token in without_text else len(_bytes_of(encoding, token)) for token in range(size)
        )
        self.vocabulary = Vocabulary(encoding.name, size, separator, "end", sizes)

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


def make_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
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
