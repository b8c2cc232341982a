"""The verdict of the study whose runs are compared. It holds although the study looked at them after each seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hydrant.commands.compare.run import Run
from hydrant.commands.compare.verdicts.verdict import Verdict
from hydrant.errors import RecordError
from hydrant.sweeps.study.answer import RESULT, read_answer
from hydrant.terminal.console import notice, relative

LOOKED_OFTEN = (
    "The study chose the number of runs by their results. Intervals and p of this comparison are those of a number "
    "chosen beforehand, so they claim too much."
)


@dataclass(frozen=True)
class StudyVerdict:
    """What study.json says about the compared metric."""

    status: str
    sentence: str
    winner: str | None
    file: str


def find_study(runs: Sequence[Run], metric: str) -> StudyVerdict | None:
    """Return the verdict of the study of all runs; None if they are of none, or it judged another metric."""
    folders = {None if run.folder is None else run.folder.parent.resolve() for run in runs}
    folder = folders.pop() if len(folders) == 1 else None
    if folder is None:
        return None
    try:
        content = read_answer(folder)
    except RecordError as error:
        notice(f"the verdict of the study is unknown: {error}")
        return None
    if content is None or content["protocol"]["metric"] != metric:
        return None
    found = content["verdict"]
    return StudyVerdict(found["status"], found["sentence"], found["winner"], relative(folder / RESULT))


def limited(verdict: Verdict, study: StudyVerdict | None) -> Verdict:
    """Return the verdict, undecided if a study has not decided: its runs ended, or go on, by their results."""
    if study is None or study.status == "decided" or verdict.status != "decided":
        return verdict
    text = verdict.sentence.removeprefix("Decided: ")
    sentence = f"Undecided by the study; with a number of runs chosen beforehand, {text}"
    return replace(verdict, status="undecided", sentence=sentence, winner=None)
