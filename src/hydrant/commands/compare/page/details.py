"""The configs of the runs, for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hydrant.commands.compare.config_keys import as_text
from hydrant.commands.compare.run import Run


def details(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the most frequent value of each config key, and the others of each run (None: no such key)."""
    configs = [{key: as_text(value) for key, value in run.config.items()} for run in runs]
    counts: dict[str, Counter[str]] = {}
    for config in configs:
        for key, text in config.items():
            counts.setdefault(key, Counter())[text] += 1
    common = {key: values.most_common(1)[0][0] for key, values in sorted(counts.items())}
    return {
        "common": common,
        "runs": [
            {key: config.get(key) for key, text in common.items() if config.get(key) != text}
            for config in configs
        ],
    }
