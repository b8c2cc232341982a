"""The table of best learning rates over widths is written from its committed results."""

from __future__ import annotations

import doctest
import math

import pytest

from benchmarks import mup_transfer


def test_the_table_is_generated_from_the_results() -> None:
    assert mup_transfer.PAGE.read_text(encoding="utf-8") == mup_transfer.page()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_best_learning_rates_of_four_widths_are_within_a_factor_of_sqrt_2(optimizer: str) -> None:
    found = mup_transfer.load()[1][optimizer]
    assert len(found) == 4
    assert all(len(losses) >= 5 for losses in found.values())
    factor = mup_transfer.spread(found)
    assert factor is not None
    assert factor <= math.sqrt(2)


def test_the_examples_in_docstrings_are_correct() -> None:
    results = doctest.testmod(mup_transfer)
    assert results.attempted
    assert not results.failed
