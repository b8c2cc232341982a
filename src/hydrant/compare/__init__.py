"""`compare`: runs beside each other, as a table, as groups over seeds, and as a page. Brings in no torch."""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.arguments import Flags, written
from hydrant.errors import ConfigError
from hydrant.job import emit, say


def main(arguments: Sequence[str]) -> int:
    """Compare runs; the exit status."""
    options, words = _read(arguments)
    from hydrant.compare.comparison import compare  # brings in scipy
    from hydrant.compare.output import as_csv, as_json
    from hydrant.compare.page import write_page
    from hydrant.compare.sources import read_runs
    from hydrant.compare.targets import parse_target
    from hydrant.compare.terminal import as_text
    from hydrant.compare.wandb_views import check_login, save_views

    if options.wandb:
        check_login()
    price = options.price_per_hour
    if price is not None and not (math.isfinite(price) and price >= 0):
        raise ConfigError("--price-per-hour", f"{price:g} is no price; give what one run costs an hour")
    target = None if options.target is None else parse_target(options.target)
    comparison = compare(
        read_runs(words),
        by=None if options.by is None else [key for key in options.by.split(",") if key],
        metric=options.metric,
        mode=options.mode,
        baseline=options.baseline,
        target=target,
        price_per_hour=price,
    )
    if options.html is not None:
        with written("--html", options.html):
            write_page(comparison, options.html)
    if options.json:
        emit(as_json(comparison))
    elif options.csv:
        emit(as_csv(comparison))
    else:
        say(as_text(comparison, options.html))
    if options.wandb:
        for line in save_views(comparison):
            print(line, file=sys.stderr, flush=True)
    return 0


def _read(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("compare")
    parser.add_argument("--by")
    parser.add_argument("--metric")
    parser.add_argument("--mode", choices=["max", "min"])
    parser.add_argument("--baseline")
    parser.add_argument("--target")
    parser.add_argument("--price-per-hour", type=float)
    parser.add_argument("--html", type=Path)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true")
    formats.add_argument("--csv", action="store_true")
    parser.add_argument("--wandb", action="store_true")
    return parser.split(arguments)
