"""Sources whose samples stay on the device."""

from types import SimpleNamespace

import pytest
import torch
from sources import in_memory, joined, same, spec, update

from hydrant.data import InMemorySource, ShiftFlip
from hydrant.data.in_memory import Augment


@pytest.mark.parametrize(
    "augment", [None, ShiftFlip(), lambda images, draws, seed: images], ids=["none", "shift", "identity"]
)
def test_floats_are_normalized_to_the_same_bits_once_or_per_batch(augment: Augment | None) -> None:
    inputs = torch.rand(25, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    original = inputs.clone()
    source = InMemorySource(inputs, torch.arange(25), (0.5, 0.4, 0.3), (0.3, 0.2, 0.1), augment)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (source.mean, source.std))
    for batch in [*source.stream(spec()).micro_batches(1), *source.batches(spec(), 10)]:
        assert torch.equal(batch.inputs, (inputs[batch.targets] - mean) / std)
    assert torch.equal(inputs, original)


def test_batches_of_a_chunk_are_remade_when_read_again() -> None:
    source, sizes = in_memory(), list[int]()
    stream = source.stream(spec(micro_batch_size=4))
    make = stream.reader.train_batch
    stream.reader = SimpleNamespace(train_batch=lambda draws: sizes.append(len(draws)) or make(draws))
    for num_updates in range(80):
        for batch in stream.micro_batches(num_updates):
            batch.inputs.zero_()
    assert sizes == [12, 12 * 64, 12 * 64]
    for num_updates in (70, 71):
        assert same(joined(stream.micro_batches(num_updates)), update(source, num_updates))
    assert sizes[3:] == [12, 12]  # each update alone


def test_a_model_may_write_parameters_into_the_batches_of_a_chunk() -> None:
    """For example `x += self.position`. The other batches of the chunk do not change."""
    source, parameter = in_memory(), torch.nn.Parameter(torch.ones(()))
    stream = source.stream(spec(micro_batch_size=4))
    for num_updates in range(3):
        for batch in stream.micro_batches(num_updates):
            original = batch.inputs.clone()
            batch.inputs.mul_(2 * parameter)
            assert torch.equal(batch.inputs, 2 * original)
        assert same(joined(stream.micro_batches(num_updates)), update(source, num_updates))
