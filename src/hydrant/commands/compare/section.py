"""A section of a comparison: what the terminal, JSON and the page show of one subject."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of texts, with `-` for a missing value."""

    name: str
    caption: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_labels: int = 1  # columns in front that say what a row is about
    items: str = "rows"  # what the rows are, in words
    best: Collection[int] = ()  # the rows to mark
    ranks: Sequence[float] = ()  # of each row, smaller is better; none: the rows have an order of their own
    always: Collection[int] = ()  # rows that are shown also if others are left out
    page_only: Collection[int] = ()  # columns for which only a page has room
    dispensable: Sequence[int] | None = None  # for a narrow terminal; None: all but the first two
    notes: Sequence[str] = ()  # behind each row


@dataclass(frozen=True)
class Section:
    """Tables, and what they mean in sentences."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = ()
    has_heading: bool = True  # in the terminal
    is_detail: bool = False  # in the terminal only with --details
