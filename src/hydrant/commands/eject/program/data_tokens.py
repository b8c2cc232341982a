"""Sequences of the tokens in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.commands.eject.program.settings import (
    BATCH_SIZE,
    DEVICE,
    IGNORED,
    IS_IN_ORDER,
    NUM_SAMPLES,
    SEED,
    SEPARATES,
    SEPARATOR,
    SEPARATOR_IS_LAST,
    SEQUENCE_LENGTH,
    TRAIN_FILES,
    VAL_FILES,
)
from hydrant.seeding import permuted


class Tokens:
    """The tokens of files in a row, as if they were one."""

    def __init__(self, files: tuple[tuple[str, str, int, int], ...]) -> None:
        self.parts = [np.memmap(file, dtype, "r", offset, (count,)) for file, dtype, offset, count in files]
        self.starts = np.cumsum([0, *map(len, self.parts)])

    def __getitem__(self, places: slice) -> np.ndarray:
        first, last = (
            np.searchsorted(self.starts, end, side="right") - 1 for end in (places.start, places.stop - 1)
        )
        parts = np.concatenate(self.parts[first : last + 1])
        return parts[places.start - self.starts[first] : places.stop - self.starts[first]]


def load_tokens() -> tuple[Tokens, Tokens]:
    """Return the tokens to train on and to evaluate on, which stay in their files until they are used."""
    return Tokens(TRAIN_FILES), Tokens(VAL_FILES)


def samples_of(update: int) -> Tensor:
    """Return the indices of the samples of an update: BATCH_SIZE of them, from one epoch after the other."""
    if IS_IN_ORDER:
        return torch.arange(update * BATCH_SIZE, (update + 1) * BATCH_SIZE) % NUM_SAMPLES
    epochs, places = np.divmod(np.arange(update * BATCH_SIZE, (update + 1) * BATCH_SIZE), NUM_SAMPLES)
    parts = [
        permuted(SEED, epoch, places[epochs == epoch], NUM_SAMPLES) for epoch in np.unique(epochs).tolist()
    ]
    return torch.from_numpy(np.concatenate(parts))


def read_sequences(tokens: Tokens, chosen: Tensor) -> tuple[Any, Tensor]:
    """Return sequences of SEQUENCE_LENGTH tokens and, as targets, the next token of each."""
    starts = [index * SEQUENCE_LENGTH for index in chosen.tolist()]
    rows = np.stack([tokens[start : start + SEQUENCE_LENGTH + 1] for start in starts]).astype(np.int64)
    inputs, targets = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
    if SEPARATES:
        documents = torch.from_numpy(documents_of(rows))
        targets = targets.where(
            documents[:, 1:] == documents[:, :-1], IGNORED
        )  # of the last token of a document
        packed = {"tokens": inputs.to(DEVICE), "documents": documents[:, :-1].to(DEVICE)}
        return packed, targets.to(DEVICE)
    return inputs.to(DEVICE), targets.to(DEVICE)


def documents_of(rows: np.ndarray) -> np.ndarray:
    """Return the number of each token's document in its row, from 0."""
    is_separator = rows == SEPARATOR
    numbers = is_separator.cumsum(axis=1)
    if SEPARATOR_IS_LAST:
        numbers -= is_separator
    return numbers - numbers[:, :1]
