"""What a run tells about its samples and its budget."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from hydrant.clock import Steps
from hydrant.extensions.compare.comparison import _budget
from hydrant.extensions.compare.run import Run, Series
from hydrant.extensions.compare.targets import time_to_target
from hydrant.training.early_stopping import parse_target

GROWING = {"global_batch_size.0": 64, "global_batch_size.100": 128}


def run(config: Mapping[str, Any]) -> Run:
    series = {"val/loss": Series(np.array([0.0, 150.0]), np.array([1.0, 0.1]))}
    return Run("one", "finished", config, {}, {"total_updates": 150}, series)


@pytest.mark.parametrize(
    ("config", "sizes", "budget", "samples"),
    [
        ({"global_batch_size": 64}, Steps.constant(64), "9,600 samples", 9600),
        (GROWING, Steps((0, 100), (64, 128)), "12,800 samples", 12800),
        (GROWING | {"duration": "5min"}, Steps((0, 100), (64, 128)), "5min of training", 12800),
        ({"global_batch_size.0": 64, "global_batch_size.1ep": 128}, None, "unknown", math.nan),
        ({"global_batch_size": "64"}, None, "unknown", math.nan),
        ({"duration": "often"}, None, "unknown", math.nan),
    ],
)
def test_samples_are_those_of_every_update(
    config: Mapping[str, Any], sizes: Steps[int] | None, budget: str, samples: float
) -> None:
    one = run(config)
    assert one.batch_sizes == sizes
    assert _budget(one) == budget
    reached = time_to_target(one, parse_target("val/loss<=0.5", "--target"))["samples"]
    assert reached == pytest.approx(samples, nan_ok=True)
