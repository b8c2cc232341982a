"""The answer of a study, as other commands read it from its study.json."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from hydrant.files.read_file import read_json

RESULT = "study.json"


class _Verdict(TypedDict):
    status: str
    sentence: str
    winner: str | None


class _Protocol(TypedDict):
    metric: str
    first_fresh_seed: int


class Answer(TypedDict):
    """What a study asked, of which metric, and what it answered."""

    question: str
    verdict: _Verdict
    protocol: _Protocol


def read_answer(folder: Path) -> Answer | None:
    """Return what study.json of a folder answers; None if there is none.

    Raises:
        RecordError: it is damaged.
    """
    return read_json(folder / RESULT, Answer, "; the same command writes it again")
