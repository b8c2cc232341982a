"""Memory of the CPU that is used again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_NUM_KEPT = 2  # the batch in use, and the next one


class ReusedFloats:
    """Uninitialized float32 tensors on the CPU, whose memory is used again when nothing refers to it any more.

    The operating system clears each page of new memory. For a batch of photographs, this takes longer than to
    normalize them.

    >>> batches = ReusedFloats()
    >>> first = batches.empty([2, 3])
    >>> view, place = first[1], first.data_ptr()
    >>> del first
    >>> batches.empty([2, 3]).data_ptr() == place  # the view still needs the memory
    False
    >>> del view
    >>> batches.empty([2, 3]).data_ptr() == place
    True
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, weakref.ref[np.ndarray]]] = []  # the newest last

    def empty(self, shape: Sequence[int]) -> Tensor:
        """Return a tensor of this shape."""
        unused = (memory for memory, user in self._kept if user() is None and memory.shape == tuple(shape))
        memory = next(unused, None)
        if memory is None:
            memory = torch.empty(tuple(shape))
        user = memory.numpy()  # a new array, which lives as long as the storage of the tensor below
        others = [entry for entry in self._kept if entry[0] is not memory]
        self._kept = [*others, (memory, weakref.ref(user))][-_NUM_KEPT:]
        return torch.from_numpy(user)
