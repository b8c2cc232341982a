"""Files that predictions must not replace, because samples may be read from them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydrant.data import InMemorySource
from hydrant.errors import ConfigError
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
