"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def fit_columns(
    rows: Sequence[Sequence[str]], left: Collection[int], width: int, dispensable: Sequence[int]
) -> tuple[list[str], list[str]]:
    """Return the lines of `align_columns`, and the titles of the columns that were left out to fit them into `width`.

    Args:
        rows: the first one has the titles.
        dispensable: columns that may be left out, the first one first.

    >>> fit_columns([["run", "loss", "best"], ["first", "0.5", "0.4"]], {0}, width=12, dispensable=[2])
    (['run    loss', 'first   0.5'], ['best'])
    """
    kept, left_out = list(range(max(map(len, rows)))), list[str]()
    for column in [*dispensable, None]:
        shown = [[row[n] for n in kept if n < len(row)] for row in rows]
        lines = align_columns(shown, {kept.index(n) for n in left if n in kept})
        if column is None or max(map(len, lines)) <= width:
            return lines, left_out
        kept.remove(column)
        left_out.append(rows[0][column])
    raise AssertionError


def align_columns(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return one line per row, in columns: those in `left` are left-aligned, the others right-aligned.

    >>> align_columns([["run", "loss"], ["first", "0.5"]], {0})
    ['run    loss', 'first   0.5']
    """
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(max(map(len, rows)))]
    return [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        for row in rows
    ]
