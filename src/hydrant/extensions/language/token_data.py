"""Language modeling data: sequences of the tokens in files.

Documents that are packed into sequences.

Sequences of tokens, read from memory-mapped files: a sample is a function of its index, so nothing is prepared.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, map_tensors
from hydrant.data.base import Data, Indices, StreamSpec, batch_ranges, select, to_device
from hydrant.data.dataset import make_parts
from hydrant.data.in_memory import tensor_reader
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.language import token_files
from hydrant.extensions.language.tokenizers import Tokenizer, make_tokenizer
from hydrant.files.on_disk import raise_limit
from hydrant.files.plain_values import PositiveInt


def cut_documents(numbers: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return the lengths of documents, and the place of their first tokens among those of all sequences, int32.

    Then come the number of all tokens and, so that few shapes occur, this number again as often as documents are
    missing to a power of two.

    Args:
        numbers: (B, L), the number of the document of each token in its sequence, from 0. A sequence ends a document.

    >>> cut_documents(np.array([[0, 0, 1], [0, 0, 0]]))
    ([2, 1, 3], array([0, 2, 3, 6, 6], dtype=int32))
    """
    starts = np.flatnonzero(np.diff(numbers, axis=1, prepend=-1))
    bounds = np.full(2 ** (len(starts) - 1).bit_length() + 1, numbers.size, np.int32)
    bounds[: len(starts)] = starts
    return np.diff(starts, append=numbers.size).tolist(), bounds


def with_cuts(numbers: np.ndarray, on_device: Callable[[np.ndarray], Tensor]) -> Tensor:
    """Return the numbers of documents on a device. As attributes they have their lengths and their bounds.

    A batch has no other place for these: there, each tensor has an entry for each sample. What is made of the tensor,
    such as those of several batches, does not have them.
    """
    documents: Any = on_device(numbers)
    lengths, bounds = cut_documents(numbers)
    documents.lengths, documents.bounds = lengths, on_device(bounds)
    if "torch._dynamo" in sys.modules:  # one compiled graph takes any number of documents
        torch._dynamo.maybe_mark_dynamic(documents.bounds, 0)
    return documents


Sampling = Literal["windows", "contiguous", "documents"]

IGNORED = -100
"""The target of a token whose next one belongs to another document, as `torch.nn.functional.cross_entropy` has it."""


class TokenShards:
    """The tokens of several files in a row, as if they were one."""

    def __init__(self, files: Sequence[token_files.TokenFile]) -> None:
        self.files = tuple(files)
        self._starts = np.cumsum([0, *(file.num_tokens for file in files)])
        self._first_tokens: list[int] = self._starts.tolist()
        # By the number of the file.
        self._mapped: dict[int, np.ndarray] = {}

    @property
    def num_tokens(self) -> int:
        return int(self._starts[-1])

    def windows(self, indices: Indices, length: int) -> np.ndarray:
        """Return sequences by their numbers, of the type of the files: (N, length + 1).

        Sequence i is `tokens[i * length : i * length + length + 1]`: its last token is the first one of the next.
        """
        starts = np.asarray(indices) * length
        places = np.searchsorted(self._starts, starts, side="right") - 1
        numbers: list[int] = places.tolist()
        offsets = (starts - self._starts[places]).tolist()
        tokens = {number: self._map(number) for number in set(numbers)}
        rows = np.empty((len(indices), length + 1), np.result_type(*(file.dtype for file in self.files)))
        for row, (number, offset) in enumerate(zip(numbers, offsets, strict=True)):
            part = tokens[number][offset : offset + length + 1]
            rows[row] = part if len(part) > length else self.read(int(starts[row]), length + 1)
        return rows

    def read(self, start: int, count: int) -> np.ndarray:
        """Return the tokens `[start, start + count)`, which may lie in several files."""
        number = bisect.bisect_right(self._first_tokens, start) - 1
        offset = start - self._first_tokens[number]
        part = self._map(number)[offset : offset + count]
        if len(part) == count:
            return part
        return np.concatenate([part, self.read(start + len(part), count - len(part))])

    def _map(self, number: int) -> np.ndarray:
        """Return the tokens of a file."""
        if number not in self._mapped:
            self._mapped[number] = self.files[number].mapped()
        return self._mapped[number]

    def place(self, position: int) -> str:
        """Return where a token is, for messages."""
        number = bisect.bisect_right(self._first_tokens, position) - 1
        return f"token {position - self._first_tokens[number]:,} of {self.files[number].path}"


@dataclass(frozen=True)
class FileOrder:
    """The order of the files, the same in every epoch and with every seed."""

    num_samples: int

    def indices(self, position: int, count: int) -> Indices:
        """Return the samples at positions `[position, position + count)` of the endless stream."""
        first = position % self.num_samples
        if first + count <= self.num_samples:
            return range(first, first + count)
        return np.arange(first, first + count) % self.num_samples


@dataclass(frozen=True)
class ShuffledOrder:
    """A random order: a permutation of all samples for each epoch.

    Unlike `SampleOrder`, it holds no permutation in memory and computes any place at once.
    """

    seed: int
    num_samples: int

    def indices(self, position: int, count: int) -> np.ndarray:
        parts = list[np.ndarray]()
        while count > 0:
            epoch, offset = divmod(position, self.num_samples)
            block, first = divmod(offset, _BLOCK)
            part = _block(self.seed, epoch, block, self.num_samples)[first : first + count]
            parts.append(part)
            position, count = position + len(part), count - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


_ROUNDS = 8


def permuted(seed: int, epoch: int, places: np.ndarray, num_samples: int) -> np.ndarray:
    """Return the samples at some places of the order of an epoch: int64, (N,).

    The order is not that of `seeding.permutation`. No place depends on others, so the cost does not grow with
    `num_samples`. A Feistel network permutes the numbers of an even number of bits; those that are too large are
    permuted again (Black & Rogaway, "Ciphers with arbitrary finite domains", 2002, section 4).

    Args:
        seed: of the run.
        epoch: from 0.
        places: int64, (N,), each below `num_samples`.
        num_samples: of an epoch.

    >>> sorted(permuted(0, 0, np.arange(10), 10).tolist()) == list(range(10))
    True
    """
    half = max((num_samples - 1).bit_length() + 1, 2) // 2
    keys = [np.uint64(seeding.hash_of(seed, seeding.ORDER, epoch, number)) for number in range(_ROUNDS)]
    width, mask = np.uint64(half), np.uint64((1 << half) - 1)
    numbers, waiting = places.astype(np.uint64), np.full(places.shape, True)
    while waiting.any():
        left, right = numbers[waiting] >> width, numbers[waiting] & mask
        for key in keys:
            mixed = (right + key) * np.uint64(seeding.MULTIPLIERS[0])
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(seeding.MULTIPLIERS[1])
            left, right = right, left ^ ((mixed >> np.uint64(33)) & mask)
        numbers[waiting] = (left << width) | right
        waiting = numbers >= num_samples  # too large: permute them again
    return numbers.astype(np.int64)


_BLOCK = 4096  # samples whose places are computed at once, because one takes nearly as long


@lru_cache(maxsize=2)
def _block(seed: int, epoch: int, block: int, num_samples: int) -> np.ndarray:
    places = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, num_samples))
    return permuted(seed, epoch, places, num_samples)


@dataclass(frozen=True)
class TokenSource:
    """Sequences of `length` tokens with the next token of each as its target.

    Inputs are int64 (B, length). With `sampling=documents` they are a dict: `tokens`, int64 (B, length), and
    `documents`, the number of each token's document in its row, int64 (B, length), which knows where it is cut
    (`with_cuts`). Targets are int64 (B, length).

    Args:
        shards: the tokens.
        length: of a sequence.
        vocab_size: ids are below it.
        sampling: as `conf/data/tokens.yaml` explains it.
        separator: the token between two documents.
        separator_position: whether it is the last token of a document, or the first.
        samples: the numbers of the sequences.
    """

    shards: TokenShards
    length: int
    vocab_size: int
    sampling: Sampling
    separator: int | None
    separator_position: token_files.Position
    samples: Indices

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def stream(self, spec: StreamSpec) -> TokenStream:
        in_order = self.sampling == "contiguous"
        order = FileOrder(self.num_samples) if in_order else ShuffledOrder(spec.seed, self.num_samples)
        return TokenStream(_TokenReader(self, spec.device), order, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterator[Batch]:
        reader = _TokenReader(self, spec.device)
        for indices in batch_ranges(self.num_samples, batch_size, spec.rank, spec.world_size):
            yield reader.read(indices)

    def subset(self, indices: Indices) -> TokenSource:
        return replace(self, samples=select(self.samples, indices))


@dataclass(frozen=True)
class TokenStream:
    """The training stream of one rank. A micro-batch is read when it is asked for."""

    reader: _TokenReader
    order: FileOrder | ShuffledOrder
    spec: StreamSpec

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for position in self.spec.positions(num_updates):
            yield self.reader.read(self.order.indices(position, self.spec.micro_batch_size))

    def close(self) -> None:
        """Do nothing, because there are no workers."""


@dataclass(frozen=True)
class _TokenReader:
    """Reads batches on the host and copies them to the device."""

    source: TokenSource
    device: torch.device

    def read(self, indices: Indices) -> Batch:
        """Return the batch of these samples."""
        source = self.source
        samples = select(source.samples, indices)
        if isinstance(samples, range) and samples.step == 1 and source.sampling != "documents":
            return self._read_in_a_row(samples)
        rows = source.shards.windows(samples, source.length)
        self._check(rows, samples)
        inputs, targets = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
        if source.sampling != "documents":
            return Batch(self._on_device(inputs), self._on_device(targets))
        numbers = self._documents(rows)
        targets[numbers[:, 1:] != numbers[:, :-1]] = IGNORED
        documents = with_cuts(np.ascontiguousarray(numbers[:, :-1]), self._on_device)
        return Batch({"tokens": self._on_device(inputs), "documents": documents}, self._on_device(targets))

    def _read_in_a_row(self, samples: range) -> Batch:
        """Return the batch of samples that follow each other: one part of the tokens, read without a loop.

        Inputs and targets share their memory: the tokens are converted and copied once.
        """
        length, shape = self.source.length, (len(samples), self.source.length)
        tokens = self.source.shards.read(samples.start * length, len(samples) * length + 1)
        ids = self._on_device(tokens.astype(np.int64))
        self._check(tokens, samples)  # here the tokens are in the cache, so it takes half as long
        inputs, targets = (ids.as_strided(shape, (length, 1), offset) for offset in (0, 1))
        return Batch(inputs, targets)

    def _check(self, rows: np.ndarray, samples: Indices) -> None:
        """Raise DataError if a token is not in the vocabulary: an embedding on a GPU could not say which one.

        Args:
            rows: the tokens of each sample (N, L + 1), or of samples that follow each other (N * L + 1,).
            samples: their numbers.
        """
        source = self.source
        smallest = 0 if rows.dtype.kind == "u" else int(rows.min())
        if (largest := int(np.maximum.reduce(rows, axis=None))) >= source.vocab_size or smallest < 0:
            rows = np.atleast_2d(rows)
            row, column = np.argwhere((rows >= source.vocab_size) | (rows < 0))[0]
            place = source.shards.place(int(samples[row]) * source.length + int(column))
            message = f"{place} is {rows[row, column]}, but ids are 0 to {source.vocab_size - 1}"
            remedy = f"give data.vocab_size={largest + 1} or more, or another data.dtype if the file has one"
            raise DataError(message, remedy=remedy)

    def _documents(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of each token's document in its row, from 0: int64 (B, length + 1)."""
        is_separator = rows == self.source.separator
        numbers = is_separator.cumsum(axis=1)
        if self.source.separator_position == "end":
            numbers -= is_separator
        return numbers - numbers[:, :1]

    def _on_device(self, values: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(values), self.device)


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
    vocabulary: token_files.Vocabulary | None = field(kw_only=True)

    def batch_for_flops(self, batch: Batch) -> Batch:
        """Return the batch with one document in each sequence: all pairs of tokens count, wherever documents end."""

        def whole(tensor: Tensor) -> Tensor:
            numbers = np.zeros(tuple(tensor.shape), np.int64)
            return with_cuts(numbers, torch.from_numpy) if hasattr(tensor, "lengths") else tensor

        return map_tensors(whole, batch)

    @property
    def token_bytes(self) -> Sequence[int] | None:
        """The number of UTF-8 bytes that each token stands for, (vocab_size,); 0 for special tokens; None: unknown."""
        if self.vocabulary is None:
            return None
        known = self.vocabulary.token_bytes
        return (*known, *[0] * (self.vocab_size - len(known)))

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
            message = "has no tokens.json, so nothing says which text its tokens stand for"
            raise ConfigError("data.root", message)
        return make_tokenizer(self.vocabulary)


def tokens(
    *,
    root: str,
    train: str | list[str],
    val: str | list[str] | None,
    test: str | list[str] | None,
    extra_val: Mapping[str, str | list[str]],
    dtype: Literal["uint16", "uint32"] | None,
    sequence_length: PositiveInt,
    sampling: Sampling,
    vocab_size: int | None,
    separator: int | None,
    separator_position: token_files.Position | None,
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
    files = token_files.splits_of(
        {"root": root, "dtype": dtype, "train": train, "val": val, "test": test, "extra_val": extra_val}
    )
    if fingerprint is not None and (digest := token_files.fingerprint(files)) != fingerprint:
        message = f"is {fingerprint} in the config, but {digest} in {root}: the tokens have changed"
        raise ConfigError("data.fingerprint", message, remedy="restore them, or give data.fingerprint=null")
    folder = token_files.vocabulary_folder(root, files)
    vocabulary = token_files.vocabulary_of(folder)
    size = _checked_size(vocab_size, vocabulary, folder)
    if sampling == "documents" and (separator is None or separator_position is None):
        needed = "sampling=documents needs the token that divides documents, such as 50256"
        key = "data.separator" if separator is None else "data.separator_position"
        raise ConfigError(key, f"{folder} has no tokens.json", remedy=needed)
    if separator is not None and not 0 <= separator < size:
        message = f"{separator} is no token: they are 0 to {size - 1}, by data.vocab_size"
        raise ConfigError("data.separator", message, remedy="give the token that divides documents")
    raise_limit()  # each file has a descriptor
    shards = {name: TokenShards(part) for name, part in files.items()}

    def source(name: str, _: object) -> TokenSource:
        count = (shards[name].num_tokens - 1) // sequence_length
        if count < 1:
            message = f"{sequence_length} is too long: data.{name} has {shards[name].num_tokens} tokens"
            message += ", and a sample takes one more than its length"
            raise ConfigError("data.sequence_length", message)
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


def _checked_size(vocab_size: int | None, vocabulary: token_files.Vocabulary | None, folder: Path) -> int:
    if vocab_size is None:
        raise token_files.size_unknown(folder)
    if vocabulary is not None and vocab_size < vocabulary.size:
        message = f"{vocab_size} is less than the {vocabulary.size} of {folder}"
        raise ConfigError("data.vocab_size", message, remedy="give that or more")
    return vocab_size
