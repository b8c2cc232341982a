"""What commands print with `--json`: an error, how runs go, and how they end. Other answers are beside their commands.

A field without a value is left out of an answer. A number that is not finite is null.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from hydrant.records.files import Best, Error


class Answer(Struct, forbid_unknown_fields=True):
    """A part of an answer, with these fields and no others."""


class ErrorLine(Answer):
    """An error, or the signal that ended a command: the last line on stderr if the exit status is not 0.

    (`diagnose` with findings and `sync` with a failed run have the exit status 1 and an answer instead.)

    Attributes:
        key: The config key, the flag, or the argument (such as `FOLDER`, as in the help) to change; empty if it is not
            a single one.
        message: What is wrong, as a sentence; it names the key.
        remedy: What to do; null if the error does not know it.
        exit_status: 1: it failed; 2: the config or the command line is wrong, and nothing was started; 130 and 143:
            stopped and saved.
    """

    key: str
    message: str
    remedy: str | None
    exit_status: int


class RunProgress(Answer):
    """The progress of a run. Unknown values are null.

    Attributes:
        run: Its folder, relative to the sweep's.
        folder: Its folder.
        choices: Its overrides, by key.
        state: `finished`, `starting`, `running`, `queued`, `preempted` (saved; the same command continues it),
            `stopped`, `pruned`, `failed`, `refused`, `killed`, `not started`, `missing`, `damaged` or
            `running elsewhere`.
        pid: The process that trains it on this machine.
        num_updates: Completed updates.
        total_updates: Updates in the whole run.
        loss: The last training loss, while it runs.
        seconds_left: While it runs, by its present speed.
        metric: The metric that decides the best checkpoint.
        best: The best value of it.
        best_num_updates: After how many updates it was.
        message: Why it failed, or how an earlier start of a queued run ended.
    """

    run: str
    folder: str
    choices: Mapping[str, str]
    state: str
    pid: int | None = None
    num_updates: int | None = None
    total_updates: int | None = None
    loss: float | None = None
    seconds_left: float | None = None
    metric: str | None = None
    best: float | None = None
    best_num_updates: int | None = None
    message: str = ""


class RunError(Answer):
    """A run that failed or was refused, and why."""

    run: str
    message: str


class Train(Answer):
    """How a run ended. It is printed also if the run failed, and the error then on stderr; not if nothing was started.

    Attributes:
        folder: Its folder.
        status: `finished`, `stopped`, `pruned`, `preempted` (saved; the same command continues it) or `failed`.
        num_updates: Completed updates.
        total_updates: Updates in the whole run.
        metrics: The last value of each metric.
        best: The best checkpoint.
        error: Why it failed.
    """

    folder: str
    status: str
    num_updates: int | None
    total_updates: int | None
    metrics: Mapping[str, float | None] | None
    best: Best | None
    error: Error | None


class EndedSweep(Answer):
    """How a sweep ended.

    Attributes:
        folder: Its folder.
        states: How many runs are in each state; `status` explains them.
        errors: The runs that failed or were refused, and why: at most 20. `status` has all.
        wall_seconds: Of all starts of the sweep.
        processor_seconds: Of all starts: the processes of the sweep, and those of its jobs that were not killed, also
            on other machines.
    """

    folder: str
    states: Mapping[str, int]
    errors: Sequence[RunError]
    wall_seconds: float
    processor_seconds: float


class Sweep(EndedSweep):
    """How a sweep ended, of `train` as well. It is printed also if runs failed; not if nothing was started.

    Attributes:
        result: What a search (`best`: params and values) has found; empty for a grid.
        best: The best finished run.
        ended_by: The limit that has ended the sweep, such as `hydra.sweeper.max_runs=4`; empty if none has.
    """

    result: Mapping[str, Any]
    best: RunProgress | UnsetType | None = UNSET
    ended_by: str | UnsetType = UNSET


class SweepVerdict(Answer):
    """The verdict of a sweep by a rule of its own, such as that of a study.

    Attributes:
        metric: By which it was decided.
        first_fresh_seed: Runs with smaller seeds are not tested: they chose the settings.
        question: What was asked.
        num_tuning: The runs that are not tested.
    """

    status: str
    sentence: str
    winner: str | None
    file: str
    metric: str
    first_fresh_seed: int
    question: str
    num_tuning: int = 0
