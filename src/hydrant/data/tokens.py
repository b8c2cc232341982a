"""Language modeling data: sequences of the tokens in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from hydrant.checks import check_number
from hydrant.data.base import Data
from hydrant.data.in_memory import tensor_reader
from hydrant.data.parts import make_parts
from hydrant.data.token_files import Position, Vocabulary, size_unknown, vocabulary_folder
from hydrant.data.token_files import fingerprint as hash_of
from hydrant.data.token_source import Sampling, TokenShards, TokenSource
from hydrant.data.token_splits import splits_of, vocabulary_of
from hydrant.data.tokenizers import Tokenizer, make_tokenizer
from hydrant.errors import ConfigError
from hydrant.files.open_limit import raise_limit

_FEW_FILES = 200
"""Files of which a process may have as many open as it begins with: each has two descriptors, and 1024 are usual."""


@dataclass(frozen=True)
class TokenData(Data):
    """Sequences of tokens, and what their ids mean.

    Args:
        tokens: those of the training set.
        vocab_size: ids are below it. A model may have a larger one than the tokenizer, such as a multiple of 64.
        sequence_length: tokens of a sample.
        vocabulary: of the files, if they have one.
    """

    tokens: TokenShards = field(kw_only=True)
    vocab_size: int = field(kw_only=True)
    sequence_length: int = field(kw_only=True)
    vocabulary: Vocabulary | None = field(kw_only=True)

    @property
    def token_bytes(self) -> Sequence[int] | None:
        """The number of UTF-8 bytes that each token stands for, (vocab_size,); 0 for special tokens; None: unknown."""
        if self.vocabulary is None:
            return None
        known = self.vocabulary.token_bytes
        return (*known, *[0] * (self.vocab_size - len(known)))

    @property
    def unigram_entropy(self) -> float:
        """The loss of a model that knows nothing but the frequencies of the training tokens, in nats a token."""
        return self.tokens.unigram_entropy

    @property
    def has_tokenizer(self) -> bool:
        """Whether `encode` and `decode` know the tokenizer of the files."""
        return self.vocabulary is not None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text.

        Raises:
            ConfigError: the tokenizer is not known, or has no token for it.
        """
        return list(map(int, self._tokenizer.encode(text)))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens. Bytes that are no UTF-8 become U+FFFD.

        Raises:
            ConfigError: the tokenizer is not known.
        """
        return self._tokenizer.decode(ids)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        if self.vocabulary is None:
            raise ConfigError(
                "data.root", "has no tokens.json, so nothing says which text its tokens stand for"
            )
        return make_tokenizer(self.vocabulary)


def tokens(
    *,
    root: str,
    train: str | list[str],
    val: str | list[str] | None,
    test: str | list[str] | None,
    extra_val: Mapping[str, str | list[str]],
    dtype: Literal["uint16", "uint32"],
    sequence_length: int,
    sampling: Sampling,
    vocab_size: int | None,
    separator: int | None,
    separator_position: Position | None,
    fingerprint: str | None,
    input_shape: Sequence[int] | None,
    num_classes: int | None,
) -> TokenData:
    """Return sequences of tokens from memory-mapped files; conf/data/tokens.yaml explains the arguments.

    Files are `.bin`, with the header of llm.c and modded-nanogpt or without one (nanoGPT), and `.npy`. Those of a split
    are read in a row, as if they were one. Sample i has the tokens `[i * L, (i + 1) * L)` for a `sequence_length` of L,
    and its targets are those one place further. So no token is predicted twice in an epoch. The last tokens, which fill
    no sequence, are left out. Evaluations read the samples in order.

    Raises:
        ConfigError: a file is missing, a split is shorter than a sequence, or a key does not fit the files.
        DataError: a file cannot be read, or holds other tokens than its fingerprint says.
    """
    files = splits_of(
        {"root": root, "dtype": dtype, "train": train, "val": val, "test": test, "extra_val": extra_val}
    )
    if fingerprint is not None and (found := hash_of(files)) != fingerprint:
        message = f"is {fingerprint} in the config, but {found} in {root}: the tokens have changed"
        raise ConfigError("data.fingerprint", message, remedy="restore them, or give data.fingerprint=null")
    check_number("data.sequence_length", sequence_length, least=1)
    folder = vocabulary_folder(root, files)
    vocabulary = vocabulary_of(folder)
    size = _checked_size(vocab_size, vocabulary, folder)
    if sampling == "documents" and (separator is None or separator_position is None):
        needed = "sampling=documents needs the token that divides documents, such as 50256"
        key = "data.separator" if separator is None else "data.separator_position"
        raise ConfigError(key, f"{folder} has no tokens.json; {needed}")
    if separator is not None and not 0 <= separator < size:
        message = f"{separator} is no token: they are 0 to {size - 1}, by data.vocab_size"
        raise ConfigError("data.separator", message, remedy="give the token that divides documents")
    if sum(map(len, files.values())) > _FEW_FILES:
        raise_limit()
    shards = {name: TokenShards(part) for name, part in files.items()}

    def source(name: str, _: object) -> TokenSource:
        count = (shards[name].num_tokens - 1) // sequence_length
        if count < 1:
            message = f"{sequence_length} is too long: data.{name} has {shards[name].num_tokens} tokens"
            raise ConfigError(
                "data.sequence_length", f"{message}, and a sample takes one more than its length"
            )
        position = separator_position or "end"
        return TokenSource(shards[name], sequence_length, size, sampling, separator, position, range(count))

    return TokenData(
        **make_parts(source, train=train, val=val, test=test, extra_val=extra_val),
        input_shape=None if input_shape is None else tuple(input_shape),
        num_classes=num_classes,
        reader=tensor_reader(),
        tokens=shards["train"],
        vocab_size=size,
        sequence_length=sequence_length,
        vocabulary=vocabulary,
    )


def _checked_size(vocab_size: int | None, vocabulary: Vocabulary | None, folder: Path) -> int:
    if vocab_size is None:
        raise size_unknown(folder)
    if vocabulary is not None and vocab_size < vocabulary.size:
        message = f"{vocab_size} is less than the {vocabulary.size} of {folder}"
        raise ConfigError("data.vocab_size", message, remedy="give that or more")
    return vocab_size
