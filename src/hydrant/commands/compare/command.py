"""The command line of `hydrant compare`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.command_line import Flags, writing_to
from hydrant.runs.console import emit, notice, say


def main(arguments: Sequence[str]) -> int:
    """Compare runs. Return the exit status."""
    options, words = _parse(arguments)
    from hydrant.commands.compare.from_words import compare_words  # slow: imports scipy
    from hydrant.commands.compare.page import write_page
    from hydrant.commands.compare.serialize import to_csv, to_json
    from hydrant.commands.compare.text_report import to_text
    from hydrant.commands.compare.wandb_views import check_login, save_views

    if options.wandb:
        check_login()
    comparison = compare_words(
        words,
        by=_keys(options.by),
        metric=options.metric,
        mode=options.mode,
        baseline=options.baseline,
        target=options.target,
        price_per_hour=options.price_per_hour,
        against=options.against,
        sigma=options.sigma,
        critical=options.critical,
        difference=options.difference,
        tolerance=options.tolerance,
        tuned=_keys(options.tuned),
        scale=options.scale,
    )
    if options.html is not None:
        with writing_to("--html", options.html):
            write_page(comparison, options.html)
    if options.json:
        emit(to_json(comparison))
    elif options.csv:
        emit(to_csv(comparison))
    else:
        say(to_text(comparison, options.html))
    if options.wandb:
        for line in save_views(comparison):
            notice(line)
    return 0


def _parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("compare")
    for flag in ("--by", "--metric", "--baseline", "--target", "--against", "--tuned", "--scale"):
        parser.add_argument(flag)
    for flag in ("--price-per-hour", "--sigma", "--critical", "--difference", "--tolerance"):
        parser.add_argument(flag, type=float)
    parser.add_argument("--mode", choices=["max", "min"])
    parser.add_argument("--html", type=Path)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true")
    formats.add_argument("--csv", action="store_true")
    parser.add_argument("--wandb", action="store_true")
    return parser.split(arguments)


def _keys(text: str | None) -> list[str] | None:
    return None if text is None else [key for key in text.split(",") if key]
