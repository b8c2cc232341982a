"""Every attack runs twice: a hundredth of its trials in the default tests, all of them in the slow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from attacks import Trials


@pytest.fixture(
    params=[pytest.param(0.01, id="hundredth"), pytest.param(1.0, id="whole", marks=pytest.mark.slow)]
)
def trials(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Trials]:
    """The cases to try; `scripts/attack` reads their number from the test report."""
    trials = Trials(request.param)
    yield trials
    record_property("trials", trials.num_tried)
