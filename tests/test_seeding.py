"""Random streams depend only on the seed and their position."""

import random

import numpy as np
import pytest
import torch

from hydrant import seeding


def test_hashes_differ() -> None:
    values = {seeding.hash_of(a, b) for a in range(100) for b in range(100)} | {
        seeding.hash_of(a) for a in range(100)
    }
    assert len(values) == 10_100
    assert all(0 <= v < 1 << 64 for v in values)


def test_uniform_is_uniform_and_independent_of_its_neighbours() -> None:
    positions = torch.arange(200_000)
    values = seeding.uniform(3, positions, 0)
    assert values.dtype == torch.float32
    assert 0 <= values.min() <= values.max() < 1
    counts = torch.histc(values, bins=20, min=0, max=1)
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 50  # 19 degrees of freedom: exceeded in 1 of 10,000 cases
    assert torch.equal(values[1234:1240], seeding.uniform(3, positions[1234:1240], 0))
    other = seeding.uniform(3, positions, 1)
    assert abs(float(torch.corrcoef(torch.stack([values, other]))[0, 1])) < 0.02


def test_permutations_are_permutations_and_differ() -> None:
    orders = [seeding.permutation(0, epoch, 100) for epoch in range(3)] + [seeding.permutation(1, 0, 100)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(100))
    assert len({tuple(order.tolist()) for order in orders}) == 4


def test_the_seed_of_a_micro_step_depends_on_its_position() -> None:
    def draw(*position: int) -> torch.Tensor:
        seeding.seed_micro_step(*position, torch.device("cpu"))
        return torch.rand(4)

    torch.rand(17)
    assert torch.equal(draw(0, 5, 1), draw(0, 5, 1))
    assert not torch.equal(draw(0, 5, 1), draw(0, 5, 2))
    assert not torch.equal(draw(0, 5, 1), draw(1, 5, 1))


def test_host_state_is_restored_from_a_file(tmp_path: pytest.TempPathFactory) -> None:
    random.random()
    np.random.standard_normal()  # caches the second number of a pair, which belongs to the state
    path = f"{tmp_path}/state.pt"
    torch.save(seeding.host_state(), path)
    expected = random.random(), float(np.random.standard_normal()), float(np.random.rand())
    seeding.set_host_state(torch.load(path, weights_only=True))
    assert (random.random(), float(np.random.standard_normal()), float(np.random.rand())) == expected


def test_a_user_s_warnings_become_errors_if_the_config_asks_for_determinism() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        seeding.use_deterministic_kernels(True)
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        seeding.use_deterministic_kernels(False)
    assert not torch.are_deterministic_algorithms_enabled()
