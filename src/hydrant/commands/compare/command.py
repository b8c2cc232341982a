"""The command line of `hydrant compare`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.config.command_line import Flags, writing_to
from hydrant.errors import ConfigError
from hydrant.terminal.console import answer, emit, notice, say, wants_json

if TYPE_CHECKING:
    from hydrant.commands.compare.question import Question


def main(arguments: Sequence[str]) -> int:
    """Compare runs. Return the exit status."""
    options, words = _parse(arguments)
    from hydrant.commands.compare.comparison import compare  # slow: imports scipy
    from hydrant.commands.compare.page import follow, write_page
    from hydrant.commands.compare.serialize import to_brief, to_csv, to_dict
    from hydrant.commands.compare.sources import read_runs
    from hydrant.commands.compare.text_report import to_text
    from hydrant.commands.compare.wandb_views import check_login, save_views

    if options.wandb:
        check_login()
    question = question_of(options)
    if options.follow:
        with writing_to("--html", options.html, ".html"):
            comparison = follow(words, question, options.html)
    else:
        comparison = compare(read_runs(words, question.varied), question)
    if options.html is not None:
        with writing_to("--html", options.html, ".html"):
            write_page(comparison, options.html)
    if wants_json():
        answer(to_dict(comparison) if options.details else to_brief(comparison))
    elif options.csv:
        emit(to_csv(comparison))
    else:
        say(to_text(comparison, options.html, details=options.details))
    if options.wandb:
        for line in save_views(comparison):
            notice(line)
    return 0


def add_question_flags(parser: Flags) -> None:
    """Add the flags of the fields of a `Question`."""
    for flag in ("--metric", "--baseline", "--target", "--against"):
        parser.add_argument(flag)
    for flag in ("--by", "--best-over", "--tuned"):
        parser.add_argument(flag, type=lambda text: [key for key in text.split(",") if key])
    for flag in ("--price-per-hour", "--sigma", "--critical", "--difference", "--tolerance"):
        parser.add_argument(flag, type=float)
    parser.add_argument("--mode", choices=["max", "min"])


def question_of(options: Namespace) -> Question:
    """Return the question that the flags ask."""
    from hydrant.commands.compare.question import Question

    return Question(**{field.name: getattr(options, field.name) for field in fields(Question)})


def _parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("compare", html=Path, follow=False, csv=False, details=False, wandb=False)
    add_question_flags(parser)
    options, words = parser.split(arguments)
    if options.csv and wants_json():
        message = "prints a table for programs, as --json prints an object"
        raise ConfigError("--csv", message, remedy="give one of them")
    if options.follow and options.html is None:
        raise ConfigError("--follow", "writes a page again and again", remedy="name it: --html FILE")
    return options, words
