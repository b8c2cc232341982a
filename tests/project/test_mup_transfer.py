"""The best learning rates over widths are those of the committed results, as the guide says."""

import doctest
import math
import re

import pytest
from repository import ROOT

from benchmarks import mup_transfer


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_best_learning_rates_of_four_widths_are_within_a_factor_of_sqrt_2(optimizer: str) -> None:
    found = mup_transfer.load()[optimizer]
    assert len(found) == 4
    assert all(len(losses) >= 5 for losses in found.values())
    factor = mup_transfer.spread(found)
    assert factor is not None
    assert factor <= math.sqrt(2)
    text = (ROOT / "docs" / "guides" / "language-models.md").read_text(encoding="utf-8")
    assert re.search(
        rf"`{optimizer}` with `mup=\w+` (differ )?by a factor of {factor:.2f}", " ".join(text.split())
    )


def test_the_examples_in_docstrings_are_correct() -> None:
    results = doctest.testmod(mup_transfer)
    assert results.attempted
    assert not results.failed
