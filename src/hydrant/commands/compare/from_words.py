"""Read and compare the runs that words name: what the command and `hydrant.compare` call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hydrant.commands.compare.comparison import Comparison, compare
from hydrant.commands.compare.sources import read_runs
from hydrant.commands.compare.time_to_target import parse_target
from hydrant.commands.compare.verdicts.questions import Questions
from hydrant.errors import ConfigError
from hydrant.training import early_stopping


def compare_words(
    words: Sequence[str], *, by: Sequence[str] | None, metric: str | None, mode: str | None, baseline: str | None,
    target: str | None, price_per_hour: float | None, against: str | None = None, **asked: Any,
) -> Comparison:  # fmt: skip
    """Read the runs of `read_runs` and compare them as `compare` does.

    Args:
        target: a text: `val/accuracy>=0.95`.
        against: a text of the same form.
        asked: other questions, see `Questions`.

    Raises:
        ConfigError: unknown run, key, metric, baseline or target; or a number that is impossible.
    """
    if price_per_hour is not None and not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        message = f"{price_per_hour:g} is not a price; give what one run costs per hour"
        raise ConfigError("--price-per-hour", message)
    parsed = None if target is None else parse_target(target)  # before it reads any run
    fixed = None if against is None else early_stopping.parse_target(against, "--against")
    questions = Questions(against=fixed, **asked)
    return compare(
        read_runs(words, by or ()),
        by=by,
        metric=metric,
        mode=mode,
        baseline=baseline,
        target=parsed,
        price_per_hour=price_per_hour,
        questions=questions,
    )
