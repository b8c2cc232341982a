"""Batches are tensors in any structure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hydrant.batch import Batch, map_tensors, tensors_of, with_tensors


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Sequences:
    ids: Any
    mask: Any


TENSORS = st.sampled_from([torch.int64, torch.bool, torch.float32, torch.uint8]).map(
    lambda dtype: torch.ones(2, 3).to(dtype)
)
TREES = st.recursive(
    TENSORS | st.text() | st.none(),
    lambda inner: st.one_of(
        st.dictionaries(st.text(), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Pair, inner, inner),
        st.builds(Sequences, inner, inner),
    ),
    max_leaves=6,
)


def skeleton(tree: Any) -> str:
    """Return the structure, with the kind of each tensor."""
    return repr(map_tensors(lambda tensor: (tensor.dtype, tensor.shape), tree))


@given(TREES)
def test_mapping_keeps_the_structure_and_reaches_every_tensor(tree: Any) -> None:
    tensors = list(tensors_of(tree))
    assert skeleton(map_tensors(Tensor.clone, tree)) == skeleton(tree)
    assert all(a is b for a, b in zip(tensors_of(with_tensors(tree, tensors)), tensors, strict=True))
    assert len(list(tensors_of(map_tensors(lambda tensor: tensor + 1, tree)))) == len(tensors)
    assert all(tensor.dtype == torch.float64 for tensor in tensors_of(map_tensors(Tensor.double, tree)))


@pytest.mark.parametrize("inputs", [torch.zeros(4, 3), {"texts": ["a"] * 4, "ids": torch.zeros(4, 3)}])
def test_the_first_tensor_counts_the_samples(inputs: Any) -> None:
    assert Batch(inputs, ()).num_samples == 4
