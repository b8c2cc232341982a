"""The numbers of samples tell which damaged ones are missing."""

import torch
from sources import as_input, in_memory, spec

from hydrant.data import LoaderSource
from hydrant.data.base import DamagedSamples
from hydrant.data.loader import numbered_batches
from hydrant.errors import DataError


class Damaged:
    """Samples of which every third cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index % 3 == 2:
            raise DataError(f"sample {index} is damaged")
        return index, 10 * index


def test_damaged_samples_have_no_number() -> None:
    source = LoaderSource(Damaged(), as_input, as_input, (), (), 0, damaged=DamagedSamples(skip=True))
    for chosen, expected in ((source, [0, 1, 3, 4, 6, 7]), (source.subset(range(3, 8)), [0, 1, 3, 4])):
        numbers, values, targets = [], [], []
        for number, batch in numbered_batches(chosen, spec(), 2):
            numbers += number.tolist()
            values += batch.inputs.flatten().tolist()
            targets += batch.targets.tolist()
        first = 8 - chosen.num_samples
        assert numbers == expected
        assert values == [number + first for number in numbers]
        assert targets == [10 * value for value in values]


def test_samples_in_memory_are_counted() -> None:
    source = in_memory()
    plain = list(source.batches(spec(), 10))
    for (numbers, batch), expected, start in zip(
        numbered_batches(source, spec(), 10), plain, (0, 10, 20), strict=True
    ):
        assert numbers.tolist() == list(range(start, start + batch.num_samples))
        assert torch.equal(batch.inputs, expected.inputs)
