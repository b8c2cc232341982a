"""Sequences of the tokens in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.commands.eject.program.settings import *
from hydrant.data.packed import with_cuts
from hydrant.seeding import permuted


class Tokens:
    """The tokens of files in a row, as if they were one. They stay in the files until they are used."""

    def __init__(self, files: tuple[tuple[str, str, int, int], ...]) -> None:
        self.parts = [np.memmap(file, dtype, "r", offset, (count,)) for file, dtype, offset, count in files]
        self.starts = np.cumsum([0, *map(len, self.parts)])

    def __getitem__(self, places: slice) -> np.ndarray:
        first, last = np.searchsorted(self.starts, [places.start, places.stop - 1], side="right") - 1
        start = self.starts[first]
        return np.concatenate(self.parts[first : last + 1])[places.start - start : places.stop - start]


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
    rows = np.stack([tokens[n * SEQUENCE_LENGTH : (n + 1) * SEQUENCE_LENGTH + 1] for n in chosen.tolist()])
    read = torch.from_numpy(rows.astype(np.int64)).to(DEVICE)
    if SEPARATES:
        numbers = documents_of(rows)
        # Whether a token is not the last of a document.
        is_inside = torch.from_numpy(numbers[:, 1:] == numbers[:, :-1]).to(DEVICE)
        documents = with_cuts(numbers[:, :-1], lambda part: torch.from_numpy(part).to(DEVICE))
        return {"tokens": read[:, :-1], "documents": documents}, read[:, 1:].where(is_inside, IGNORED)
    return read[:, :-1], read[:, 1:]


def documents_of(rows: np.ndarray) -> np.ndarray:
    """Return the number of each token's document in its row, from 0."""
    is_separator = rows == SEPARATOR
    numbers = is_separator.cumsum(axis=1)
    if SEPARATOR_IS_LAST:
        numbers -= is_separator
    return numbers - numbers[:, :1]
