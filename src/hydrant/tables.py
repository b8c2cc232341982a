"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """A line a row, its columns equally wide: those in `left` start together, the others end together.

    >>> aligned([["run", "loss"], ["first", "0.5"]], {0})
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
