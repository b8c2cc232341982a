"""A comparison as text for the terminal."""

import sys
from collections.abc import Sequence
from pathlib import Path

from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.sections import VERDICT, Section, Table, sections_of
from hydrant.terminal.console import text_width
from hydrant.terminal.text import fit_columns

_MAX_ROWS = 16  # of a table whose rows have an order of their own
_MANY, _FEW = 100, 3
"""If there are more runs or groups, a table has only the best few, so that the report fits on a screen."""


def to_text(comparison: Comparison, page: Path | None, *, details: bool = False) -> str:
    """Return the verdict, the warnings and the other sections as text."""
    c = comparison
    better = "higher" if c.metric.mode == "max" else "lower"
    states = [run.state for run in c.runs]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    head = f"{len(c.runs)} run{'s' * (len(c.runs) > 1)}: {counts}. {c.metric.name} {c.moment}; {better} is better."
    verdict, *sections = sections_of(c)
    warnings = "\n".join([_bold("Warnings:"), *(f"  ! {warning.text}" for warning in c.warnings)])
    parts = [_section(verdict, 0), head, *([warnings] if c.warnings else [])]
    max_rows = _FEW if len(c.runs) > _MANY else _MAX_ROWS
    parts += [_section(section, max_rows) for section in sections if details or not section.is_detail]
    hidden = [section.name for section in sections if section.is_detail and not details]
    more = [f"--details also shows {', '.join(hidden)}"] if hidden else []
    return "\n\n".join([*parts, *more, *([] if page is None else [f"{page} shows everything, with figures"])])


def _section(section: Section, max_rows: int) -> str:
    tables = [line for table in section.tables for line in _table(table, max_rows)]
    sentences = list(section.sentences)
    if section.name == VERDICT:
        sentences[0] = _bold(sentences[0])
    return "\n".join([*([f"{section.title}:"] if section.has_heading else []), *tables, *sentences])


def _table(table: Table, max_rows: int) -> list[str]:
    """Return the lines of a table; nothing if it has no rows."""
    if not table.rows:
        return []
    places, width = _shown_rows(table, max_rows), text_width()
    columns = [n for n in range(len(table.titles)) if n not in table.page_only]
    cells = [[row[n] for n in columns] for row in (table.titles, *(table.rows[place] for place in places))]
    dispensable = columns[:1:-1] if table.dispensable is None else table.dispensable
    (title, *lines), left_out = fit_columns(
        cells, range(table.num_labels), width, [columns.index(n) for n in dispensable]
    )
    if table.notes:
        lines = [f"{line}  {table.notes[place]}" for line, place in zip(lines, places, strict=True)]
        lines = [line if len(line.rstrip()) <= width else f"{line[: width - 1]}…" for line in lines]
    pairs = zip(map(str.rstrip, lines), places, strict=True)
    shown = [_bold(line) if place in table.best else line for line, place in pairs]
    if num_more := len(table.rows) - len(places):
        worse = ", which are not better" if table.ranks else ""
        all_have = "--csv, --json --details and the page (--html) have all"
        shown.append(f"and {num_more:,} more {table.items}{worse}; {all_have}")
    wider = [f"A wider terminal also shows {', '.join(left_out)}."] if left_out else []
    return [title.rstrip(), *shown, *wider]


def _shown_rows(table: Table, max_rows: int) -> Sequence[int]:
    """Return the rows that a terminal shows: all of few, or the best ones of many."""
    places = range(len(table.rows))
    if not table.ranks:
        return places[:max_rows]
    if len(places) <= _MANY:
        return places
    best = sorted(places, key=lambda place: table.ranks[place])[:_FEW]
    return [*best, *(place for place in table.always if place not in best)]


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text
