"""Numbers, tables and command lines as plain text."""

import math
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

from hydrant.files.on_disk import as_csv

_EQUAL = 1e-8  # a smaller difference, as a part of the values, is rounding


def digits_of(values: Iterable[float | None]) -> int:
    """Return how many significant digits tell values apart that are shown together: at least four.

    The half of the values that lies closest together decides, so one that is far away hides no difference.

    >>> digits_of([0.97, 0.96, None]), digits_of([0.9000001, 0.9000003]), digits_of([1234568.9, 1234569.1])
    (4, 8, 8)
    >>> digits_of([0.3123451, 0.3123465, 0.3123481, 1e3]), digits_of([0.3, 0.1 + 0.2]), digits_of([])
    (7, 4, 4)
    """
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    pairs = ((low, high) for low, high in pairwise(known) if high - low > _EQUAL * max(abs(low), abs(high)))
    distinct = [*known[:1], *(high for _, high in pairs)]
    ranges = zip(distinct, distinct[len(distinct) // 2 :], strict=False)
    low, high = min(ranges, key=lambda ends: ends[1] - ends[0], default=(0.0, 0.0))
    if not 0.0 < high - low < math.inf:
        return 4
    size = max(abs(low), abs(high))
    return max(1 + math.ceil(math.log10(size) - math.log10(high - low) - 1e-9), 4)


def format_metric(value: float, sign: str = "", beside: Iterable[float | None] = ()) -> str:
    """Return a metric's value with four decimals, or with four digits where decimals would hide a small one.

    A large value gets eight digits, because float32 has no more, and any gets more digits if the values that are shown
    `beside` it need them. `sign="+"` also marks what is positive.

    >>> format_metric(0.97), format_metric(0.0012345), format_metric(0.00001234), format_metric(0.25, sign="+")
    ('0.9700', '0.001234', '1.234e-05', '+0.2500')
    >>> format_metric(9999.125), format_metric(260120950.2477)
    ('9999.1250', '260120950')
    >>> format_metric(0.9000002, beside=[0.9000001, 0.9000002]), format_metric(0.97, beside=[0.96, 0.97])
    ('0.90000020', '0.9700')
    """
    digits = digits_of(beside)
    if not (1e-2 <= abs(value) < 1e15 or value == 0):
        return f"{value:{sign}.{digits}g}"
    power = math.floor(math.log10(abs(value))) if value else 0
    decimals = max(min(7 - power, 4), digits - 1 - power if digits > 4 else 0, 0)
    return f"{value + 0.0:{sign}.{decimals}f}"  # without the sign of -0.0


def number(value: Any, digits: int = 4, sign: str = "") -> str:
    """Return a number with four significant digits, or `digits`; whole numbers with all, `-` for a missing one.

    `sign="+"` also marks what is positive; `sign="#"` keeps zeros at the end, as a column needs.

    >>> number(None), number(3), number(0.123456), number(123456.7), number(123456.78, 7), number(1306.2, 3)
    ('-', '3', '0.1235', '123457', '123456.8', '1306')
    >>> number(9999.6), number(999.7, 3), number(1e15), number(0.25, sign="#"), number(20100.4, sign="#")
    ('10000', '1000', '1e+15', '0.2500', '20100')
    """
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:{sign}}"
    text = f"{value:{sign}.{digits}g}"
    return (f"{value:{sign}.0f}" if "e+" in text and abs(value) < 1e15 else text).rstrip(".")


def two_digits(value: float) -> str:
    """Return a number of a sentence, where more than two digits say nothing.

    >>> two_digits(-0.05152), two_digits(-0.0000584), two_digits(12345.6)
    ('-0.052', '-0.000058', '12000')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:.7f}".rstrip("0") if 1e-6 <= abs(rounded) < 1e-4 else number(rounded)


def interval(low: float | None, high: float | None, digits: int = 4, sign: str = "") -> str:
    if low is None or high is None:
        return "-"
    return f"{number(low, digits, sign)} to {number(high, digits, sign)}"


def percent(ratio: float) -> str:
    """Return a ratio in whole percent, which is 0% or 100% only if nothing or all is meant.

    >>> percent(0.62), percent(0.0), percent(0.001), percent(0.9996), percent(1.0)
    ('62%', '0%', '<1%', '>99%', '100%')
    """
    text = f"{ratio:.0%}"
    return "<1%" if text == "0%" and ratio > 0 else ">99%" if text == "100%" and ratio < 1 else text


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


PaperTable = Literal["markdown", "latex", "csv"]
"""The ways to write a table for a paper."""

_LATEX = str.maketrans({
    **{mark: f"\\{mark}" for mark in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
})  # fmt: skip


def paper_table(kind: PaperTable, rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return rows, the first of which has the titles, as a table; the caption above it, but not in CSV.

    >>> print(paper_table("markdown", [["a|b", "n"], ["x_1", "3"]]))
    | a\\|b | n |
    | --- | --- |
    | x_1 | 3 |
    """
    if kind == "csv":
        return as_csv(rows, end="\n").rstrip("\n")
    if kind == "markdown":
        lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        table = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]
        return "\n".join([*([caption, ""] if caption else []), *table])
    head, *lines = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows)
    begin = (
        r"\begin{table}",
        rf"\caption{{{caption.translate(_LATEX)}}}",
        rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}",
    )
    return "\n".join(
        [*begin, r"\hline", head, r"\hline", *lines, r"\hline", r"\end{tabular}", r"\end{table}"]
    )


def shell_line(words: Iterable[str]) -> str:
    """Return words as a line for a shell. A word with single quotes stands in double quotes where that is possible.

    >>> print(shell_line(["train", "notes='a b'", "model.hidden=[16]"]))
    train "notes='a b'" 'model.hidden=[16]'
    """
    return " ".join(
        f'"{word}"' if "'" in word and not re.search(r'["$`\\\\!\n]', word) else shlex.quote(word)
        for word in words
    )


_BARS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a curve as one line of text.

    >>> sparkline([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    top, columns, levels = max(values), min(width, len(values)), len(_BARS) - 1
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    peaks = [max(values[a:b]) for a, b in pairwise(edges)]
    return "".join(_BARS[max(round(v / top * levels), 1) if v > 0 else 0] for v in peaks)
