"""Records: the files of a run folder and the answers of the commands, each defined once.

What is read, what JSON Schemas allow and what the tables of the docs say follow from the fields of these classes, their
types, and the `Attributes` of their docstrings.

A file with other types is damaged. A number that is not finite is null in JSON. Fields of files with a default are for
programs, or no old file has them. Answers (`--json`) that are not here are beside their commands. A field without a
value is left out of an answer.
"""

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

_MAX_REASON = 120  # characters, as a wrong value may be long


def parse_json(text: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON in UTF-8. The constants NaN and Infinity are refused.
    """
    try:
        return msgspec.json.decode(text.removeprefix(codecs.BOM_UTF8))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def check_type(value: Any, kind: Any) -> Any:
    """Return plain values as a type made of records, dict, list, Literal, plain types and `X | None`.

    Raises:
        ValueError: names a wrong or missing value.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(repr(str(error))[1:-1][:_MAX_REASON]) from None


Count = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0, lt=1e18)]
Digits = Annotated[str, Meta(pattern=r"^[0-9]{1,18}$")]


class Record(Struct):
    """What a file holds. It may hold more fields: those of a newer version, for example."""


class Best(Record):
    """The best evaluation, whose checkpoint is the best one."""

    metric: str
    value: float | None
    num_updates: Count


class Error(Record):
    """Why a run failed: the class of the error, and what it says."""

    type: str
    message: str


class Compiled(Record):
    """What torch.compile did."""

    graphs: int
    graph_breaks: int
    recompiles: int
    seconds: float
    cold_seconds: float = 0.0  # before the first update


class Environment(Record):
    """Where a run was started."""

    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    slurm_job: str | None = None
    hydrant: str | None = None
    hydrant_commit: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None


class TrackedRun(Record):
    """The W&B run."""

    id: str | None = None
    mode: str | None = None
    path: str | None = None


class Objective(Struct, frozen=True):
    """A metric that a study optimizes."""

    metric: str
    mode: Literal["max", "min"]

    def value(self, summary: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the best value that a run reached; None if it has no finite value.

        `perf/...` and `num_parameters` are read from the summary, all other metrics from the rows of metrics.jsonl.

        >>> rows = [{"num_updates": n, "val/loss": loss} for n, loss in enumerate([0.1, 0.5, 0.4])]
        >>> Objective("val/loss", "min").value({}, rows)  # without the untrained model
        0.4
        >>> Objective("num_parameters", "min").value({"num_parameters": 10}, [])
        10.0
        """
        section, _, name = self.metric.partition("/")
        if section == "perf" or not name:
            of_run = summary if not name else summary.get(section) or {}
            candidates = [of_run.get(name or section)]
        else:
            candidates = [row.get(self.metric) for row in rows if row["num_updates"]]
        values = [float(value) for value in candidates if value is not None and math.isfinite(value)]
        return (max if self.mode == "max" else min)(values, default=None)


class Trial(Record):
    """The trial of a study."""

    number: int
    objectives: list[Objective]


class Stretch(Record):
    """Updates that one config trained, of a run that continued with another one. The last stretch has no end."""

    begin: int
    end: int | None
    config: dict[str, Any]


class Summary(Record):
    """summary.json. The file is replaced as a whole at each change.

    Attributes:
        status: `running`, `finished` (all files are written and the tracker has ended), `failed` or `preempted`
            (stopped by a signal; resumable)
        num_updates: completed updates
        total_updates: planned updates
        metrics: the last value of each metric
        best: `metric`, `value` and `num_updates` of the best evaluation
        environment: versions, GPU, ranks (`world_size`), commits of Hydrant and of the folder of the command
        host: the machine where the run was last started
        num_parameters: of the task
        num_samples: of each split, after limits and folds
        flops_per_sample: of a forward pass in training, as torch counts them
        compile: graphs, graph breaks, recompiles, seconds
        perf: median speed, peak memory, `training_seconds` of all updates
        wandb: the W&B run, if there is one; another tracker may describe itself under `tracker`
        error: `type` and `message`, if the run failed
        num_damaged_samples: skipped samples ([damaged images](../guides/data-files.md#damaged-images))
        data_files: a digest of the file of each split; `compare` warns where runs differ in it
        orthogonalized_in: of Muon and its kin: `bfloat16` or `float32`; the same warning
        loss_of_batch: the samples in each loss of an evaluation, of a
            [loss of a whole batch](../guides/tasks.md#losses-of-a-whole-batch)
        end_reason: why a hook ended the run early
        stretches: of a run that [continued with another config](../guides/resuming.md#what-the-same-command-does):
            `begin`, `end` and the changed keys (`config`) of each part
        trial: of a trial of [Optuna](../guides/optuna.md): its number and objectives
        pruned: whether a pruner ended the trial
    """

    status: Literal["running", "finished", "failed", "preempted"]
    num_updates: Count
    total_updates: int | None = None
    metrics: dict[str, float | None] | None = None
    best: Best | None = None
    environment: Environment | None = None
    host: str | None = None
    num_parameters: int | None = None
    num_samples: dict[str, int] | None = None
    flops_per_sample: int | None = None
    compile: Compiled | None = None
    perf: dict[str, float | None] | None = None
    wandb: TrackedRun | None = None
    error: Error | None = None
    num_damaged_samples: int | None = None
    data_files: dict[str, str] | None = None
    orthogonalized_in: str | None = None
    loss_of_batch: int | None = None
    end_reason: str | None = None
    stretches: list[Stretch] | None = None
    trial: Trial | None = None
    pruned: bool | None = None


class SavedConfig(Record):
    """config.yaml. Its other keys are checked when a run is built from it, or are only shown."""

    allow_targets: list[str] = []
    micro_batch_size: int | None = None
    resume: str | None = None


class _Runtime(Record):
    choices: dict[str, str | None]


class _Hydra(Record):
    runtime: _Runtime


class HydraSettings(Record):
    """.hydra/hydra.yaml: the option of each config group."""

    hydra: _Hydra


class SavedFile(Record):
    """The size and the SHA-256 of a file of a checkpoint."""

    size: Count
    sha256: str


class Manifest(Record):
    """manifest.json of a checkpoint.

    Attributes:
        is_best: whether it was the best so far
        files: by name
        rows: the number of lines of metrics.jsonl and other files of the run, by name
    """

    num_updates: Annotated[int, Meta(ge=0, lt=10**18)]
    is_best: bool
    files: dict[Annotated[str, Meta(pattern=r"^\w[\w.-]*$")], SavedFile]  # in the folder itself
    rows: dict[str, Count] = {}


class SweepProcess(Record):
    """The process of a sweep: its number, and its `this_machine()`."""

    pid: int
    machine: str


class PlannedJob(Record, omit_defaults=True):
    """A job of a sweep, started or not.

    Attributes:
        run: its folder, relative to the sweep's (`sweep / run` is also that of an absolute path)
        refused: why it could not start
        earlier: when its summary was written before the newest command, in unix seconds; left out: never
        pid: of the command that planned it
        machine: of that command, if it is not the file's
    """

    run: str
    overrides: list[str]
    refused: str | None = None
    earlier: float = 0.0
    pid: int | None = None
    machine: str = ""


class SweepPlan(Record):
    """sweep.json: the jobs of a sweep, written before the first one starts.

    Attributes:
        began: when the newest command started, in unix seconds
        commands: that wrote it, as long as others were at work
        host: the name of the machine of the newest command
        wall_seconds: of all starts
        num_seed_additions: commands that added seeds after runs of others had results
        queues: the classes of launchers whose jobs go on after the command has ended
    """

    began: float
    jobs: list[PlannedJob]
    commands: list[SweepProcess] = []
    machine: str = ""
    host: str = ""
    wall_seconds: Amount = 0.0
    processor_seconds: Amount = 0.0
    num_seed_additions: Count = 0
    queues: list[str] = []


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
