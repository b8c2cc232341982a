"""Files that predictions must not replace, because samples may be read from them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hydrant.data import InMemorySource
from hydrant.errors import ConfigError
from hydrant.runs.prediction.inputs import Inputs, check_not_read

INPUTS = Inputs(InMemorySource(torch.zeros(1), ()), "the given inputs")


@pytest.mark.parametrize("name", ["a.csv", "train/a.csv", "a.jsonl", "train/a.jsonl", "a.npy", "a.parquet"])
def test_samples_in_a_folder_of_the_settings_are_not_replaced(name: str, tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(config={"data": {"path": str(tmp_path / "samples")}})
    out, other = tmp_path / "samples" / name, tmp_path / name
    for file in (out, other):
        check_not_read(file, INPUTS, plan)  # there is no such file yet
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    check_not_read(other, INPUTS, plan)
    with pytest.raises(ConfigError, match=r"holds samples, which the predictions would replace"):
        check_not_read(out, INPUTS, plan)
