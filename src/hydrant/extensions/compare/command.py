"""The command line of `hydrant compare`."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydrant.config.command_line import Flags, writing_to
from hydrant.errors import ConfigError
from hydrant.extensions.compare import SERVICES, html_page
from hydrant.extensions.compare.comparison import compare
from hydrant.extensions.compare.serialize import for_paper, to_brief, to_csv, to_dict, to_text
from hydrant.extensions.compare.sources import Question, read_runs
from hydrant.files.plain_values import check_value
from hydrant.installation import entry_points
from hydrant.terminal.console import answer, emit, notice, say, wants_json
from hydrant.terminal.text import PaperTable, paper_table

_LISTS = ("by", "best_over", "tuned")
_TEXTS = ("metric", "mode", "baseline", "target", "against")
_NUMBERS = ("sigma", "critical", "difference", "tolerance")


class _Keys(list[str]):
    """The keys of a flag, parted by commas."""

    def __init__(self, text: str) -> None:
        super().__init__(key for key in text.split(",") if key)


def main(arguments: Sequence[str]) -> int:
    """Compare runs. Return the exit status."""
    services = entry_points(SERVICES)
    types = dict.fromkeys(_LISTS, _Keys) | dict.fromkeys(_TEXTS, str) | dict.fromkeys(_NUMBERS, float)
    flags = dict.fromkeys(("follow", "csv", "details", *services), False)
    options, words = Flags("compare", html=Path, table=str, **flags, **types).split(arguments)
    if options.follow and options.html is None:
        raise ConfigError("--follow", "writes a page again and again", remedy="name it: --html FILE")
    if options.table is not None:
        check_value("--table", PaperTable, options.table)
    savers = [point.load().view_saver() for name, point in services.items() if getattr(options, name)]
    asked: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(Question)}
    question = Question(**asked)
    if options.follow:
        with writing_to("--html", options.html, ".html"):
            result = html_page.follow(words, question, options.html)
    else:
        result = compare(read_runs(words, question.varied), question)
    if options.html is not None:
        with writing_to("--html", options.html, ".html"):
            html_page.write_page(result, options.html)
    if wants_json():
        answer(to_dict(result) if options.details else to_brief(result))
    elif options.table:
        rows, caption = for_paper(result)
        emit(paper_table(options.table, rows, caption))
        if options.table == "csv":
            notice(caption)
    elif options.csv:
        emit(to_csv(result))
    else:
        say(to_text(result, options.html, details=options.details))
    for save in savers:
        for line in save(result):
            notice(line)
    return 0
