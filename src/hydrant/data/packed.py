"""Documents that are packed into sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


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
    documents = on_device(numbers)
    lengths, bounds = cut_documents(numbers)
    documents.lengths, documents.bounds = lengths, on_device(bounds)  # pyright: ignore[reportAttributeAccessIssue]
    if "torch._dynamo" in sys.modules:  # one compiled graph takes any number of documents
        torch._dynamo.maybe_mark_dynamic(documents.bounds, 0)  # pyright: ignore
    return documents
