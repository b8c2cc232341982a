"""Files that predictions must not replace, because samples may be read from them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sources import in_memory, spec

from hydrant.data import InMemorySource
from hydrant.errors import ConfigError
from hydrant.extensions.predict.arrays import numbered_batches
from hydrant.extensions.predict.prediction import Inputs, check_not_read

INPUTS = Inputs(InMemorySource(torch.zeros(1), ()), "the given inputs")


def test_files_of_samples_in_the_settings_are_not_replaced(tmp_path: Path) -> None:
    out, other = tmp_path / "samples.csv", tmp_path / "other.csv"
    plan: Any = SimpleNamespace(config={"data": {"extra_val": {"night": str(out)}}})
    for file in (out, other):
        check_not_read(file, INPUTS, plan)  # there is no such file yet
        file.touch()
    check_not_read(other, INPUTS, plan)
    with pytest.raises(ConfigError, match=r"holds samples, which the predictions would replace"):
        check_not_read(out, INPUTS, plan)


def test_samples_in_memory_are_counted() -> None:
    source = in_memory()
    assert [n.tolist() for n, _ in numbered_batches(source, spec(), 10)] == [
        list(range(start, min(start + 10, 25))) for start in (0, 10, 20)
    ]
    for (_, batch), plain in zip(
        numbered_batches(source, spec(), 10), source.batches(spec(), 10), strict=True
    ):
        assert torch.equal(batch.inputs, plain.inputs)
