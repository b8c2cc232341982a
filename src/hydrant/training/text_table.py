"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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
