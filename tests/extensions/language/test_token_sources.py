"""Tokens are read like the samples of every source."""

from pathlib import Path

import numpy as np
import pytest
from stream_properties import *  # noqa: F403
from token_folders import write_bin

from hydrant.data import Source
from hydrant.extensions.language.token_data import TokenShards, TokenSource, permuted
from hydrant.extensions.language.token_files import token_files


@pytest.fixture(params=["windows", "documents"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    """25 sequences of 4 tokens in two files, the second of which begins within a sequence."""
    tokens = np.random.default_rng(0).integers(0, 9, 102)
    files = [write_bin(tmp_path / f"{n}.bin", part) for n, part in enumerate(np.split(tokens, [42]))]
    shards = TokenShards([file for p in files for file in token_files("", str(p), "uint16", "data.train")])
    return TokenSource(shards, 4, 9, request.param, 0, "end", range(25))


@pytest.mark.parametrize("num_samples", [1, 2, 3, 10, 64, 65, 4096, 10_007])
def test_places_of_another_order_are_those_of_a_permutation(num_samples: int) -> None:
    places = np.arange(num_samples)
    orders = [permuted(*at, places, num_samples) for at in ((0, 0), (0, 1), (1, 0))]
    for order in orders:
        assert sorted(order.tolist()) == places.tolist()
        chosen = np.array([0, num_samples // 2])  # one place does not depend on others
        assert permuted(0, 0, chosen, num_samples).tolist() == orders[0][chosen].tolist()
    assert num_samples < 10 or len({tuple(order.tolist()) for order in orders}) == 3


@pytest.mark.parametrize("num_samples", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 33))])
def test_every_sample_is_as_likely_at_every_place(num_samples: int) -> None:
    """Pearson's test: its statistic has about (n - 1)² degrees of freedom, so it is far below n² + 5 n."""
    places, num_orders = np.arange(num_samples), 3000
    counts = np.zeros((num_samples, num_samples))
    for seed in range(num_orders):
        counts[places, permuted(seed, 0, places, num_samples)] += 1
    expected = num_orders / num_samples
    assert ((counts - expected) ** 2 / expected).sum() < num_samples**2 + 5 * num_samples


def test_neighbours_of_another_order_are_unrelated() -> None:
    order = permuted(0, 0, np.arange(50_000), 10**9) / 1e9
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert np.abs(np.histogram(order, 50, (0, 1))[0] / 1000 - 1).max() < 0.15
