"""What each command prints with `--json`, and an error.

A field without a value is left out of an answer. A number that is not finite is null.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from hydrant.records.files import Best, Contender, Error, Interval, Limits, Record, ShortVerdict, Spent


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


class Bench(Answer):
    """The measurements, as in bench.json.

    Attributes:
        cells: One for each combination of settings.
    """

    folder: str
    environment: Mapping[str, Any]
    num_cpus: int | None
    num_threads: int
    overrides: Sequence[str]
    repeats: int
    updates: int
    warmup: int
    cells: Sequence[Mapping[str, Any]]


class Decision(Answer):
    """What the results decide.

    Attributes:
        winner: null unless it is decided.
        leader: The group with the best mean.
        rival: The group that the sentence compares it with.
        lead: The leader minus the rival in units of the metric, so below 0 where less is better (the sentence turns
            the sign), with its corrected interval; `p_holm` decides.
        seeds_needed: For a power of 80 %.
    """

    status: Literal["decided", "undecided", "one_setting", "no_runs"]
    sentence: str
    winner: str | None
    leader: str | None
    rival: str | None
    lead: Mapping[str, Any] | None
    num_comparisons: int
    seeds_needed: int | None


class OfStudy(Answer, forbid_unknown_fields=False):
    """The verdict of a study."""

    status: str
    sentence: str
    winner: str | None
    file: str


class Change(Answer):
    """A difference in a sweep over several keys.

    Attributes:
        is_decided: Whether it is a difference.
        num_pairs: Seeds that both have; 0: compared without pairs.
        mean: In units of the metric.
        low: Of the interval that is corrected for all comparisons.
        p_holm: Corrected for all comparisons.
    """

    is_decided: bool
    num_pairs: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None


class Effect(Change):
    """The best value of a key minus another one."""

    key: str
    best: str
    other: str


class Interaction(Change):
    """How a lead changes with a value of another key.

    Attributes:
        lead_of: The first over the second value of the first key.
        change_to: The first for the second value of the second key.
        num_changes: Of these keys, of which this is the clearest.
    """

    keys: Sequence[str]
    lead_of: Sequence[str]
    change_to: Sequence[str]
    num_changes: int


class Factorial(Answer):
    """What each key changes.

    Attributes:
        effects: The best value of each key minus each other one.
        interactions: By how much a lead changes with a value of another key.
        untested: Keys whose interaction has no test: too few common results, or no noise.
        decided: The keys whose best value is better than each other one.
        left_out: The settings and seeds that an effect does not count, and in which group.
    """

    effects: Sequence[Effect]
    interactions: Sequence[Interaction]
    untested: Sequence[Sequence[str]]
    decided: Sequence[str]
    num_comparisons: int
    left_out: Sequence[str]


class Compared(Answer, forbid_unknown_fields=False):
    """A group of runs.

    Attributes:
        num: Seeds (or folds) with a result: the mean over its runs counts once.
        low: Of the 95 % interval of the mean.
        shortfall: Why the group is incomplete; empty if it is complete.
    """

    name: str
    num: int
    num_runs: int
    mean: float | None
    low: float | None
    high: float | None
    best: float | None
    shortfall: str


class Compare(Answer, forbid_unknown_fields=False):
    """The verdict, the best 10 groups and the first 5 warnings.

    With `--details`: all groups and warnings, and everything that the page shows except the curves; those fields are
    objects without a schema.

    Attributes:
        mode: `max` or `min`.
        moment: Which weights are compared.
        study: The verdict of the study whose runs are compared, computed from them. It holds although the study looked
            at its runs after each seed.
        factorial: What each key of a sweep over several keys changes, if `--by` is not given and its values are
            crossed.
        num_samples: How many samples each split has, such as `train` and `val`, where all runs have the same number.
        states: How many runs are in each state.
        groups: The best first.
        num_groups: With those that are left out.
        warnings: What makes the comparison unfair.
        num_warnings: With those that are left out.
    """

    metric: str
    mode: str
    moment: str
    verdict: Decision
    study: OfStudy | None
    factorial: Factorial | None
    caution: str
    num_samples: Mapping[str, int]
    groups: Sequence[Compared]
    warnings: Sequence[str | Mapping[str, Any]]
    num_runs: int | UnsetType = UNSET
    states: Mapping[str, int] | UnsetType = UNSET
    num_groups: int | UnsetType = UNSET
    num_warnings: int | UnsetType = UNSET


class Stage(Answer):
    """A stage of compilation.

    Attributes:
        verdict: `ok`, `differs` or `error`.
    """

    name: str
    verdict: str
    message: str


class Diagnose(Answer):
    """What torch.compile does with a config. With findings, the exit status is 1.

    Attributes:
        compile: The settings.
        graph_breaks_behind: Those that appear when the first ones are mended.
        stages: The stages that were tried.
        culprit: The smallest graph that fails, or why there is none.
    """

    findings: Sequence[str]
    compile: Mapping[str, Any]
    graph_breaks: Sequence[Mapping[str, Any]]
    graph_breaks_behind: Sequence[Mapping[str, Any]]
    stages: Sequence[Stage]
    culprit: Any


class Docs(Answer):
    """Pages of the documentation, or the titles of all.

    Attributes:
        pages: The Markdown of each page, by its name.
        titles: The title of each page.
    """

    pages: Mapping[str, str] | UnsetType = UNSET
    titles: Mapping[str, str] | UnsetType = UNSET


class Evaluate(Answer, forbid_unknown_fields=False):
    """The metrics of a checkpoint, each under its name, such as `val/loss`: a number, or null."""

    checkpoint: str
    num_updates: int


class ExplainedFile(Answer):
    """A file of the config or of an option.

    Attributes:
        text: YAML with comments.
    """

    file: str
    text: str


class ExplainedKey(Answer):
    """A key in an option.

    Attributes:
        option: The option that has the key; empty for the config itself.
        needs: What values it takes, such as `a number from 0 to 1`; empty if no type hint says it.
    """

    option: str
    key: str
    default: Any
    comment: str
    needs: str


class Explained(Answer):
    """What is known about a word.

    Attributes:
        files: Of the config or of an option.
        options: The options of a group, with the first comment of each.
        keys: Of a key, in each option that has it.
    """

    files: Sequence[ExplainedFile]
    options: Mapping[str, str]
    keys: Sequence[ExplainedKey]


class Explain(Answer):
    """What is known about each word.

    Attributes:
        explained: By word.
    """

    explained: Mapping[str, Explained]


class Export(Answer):
    """The model file.

    Attributes:
        largest_difference: Between the outputs of the file and of the model.
    """

    file: str
    format: str
    checkpoint: str
    largest_difference: float


class Init(Answer):
    """The project that was written.

    Attributes:
        package: Its Python package.
        files: What was written, relative to the folder.
        trusted: The packages that configs may name there; empty if the folder could not be trusted.
        first: The command that trains the first run, in the folder.
    """

    folder: str
    package: str
    files: Sequence[str]
    trusted: Sequence[str]
    first: str


class List(Answer):
    """The config groups or the compile backends.

    Attributes:
        groups: The options of each.
        backends: What each lacks; null if it is ready.
    """

    groups: Mapping[str, Sequence[str]] | UnsetType = UNSET
    backends: Mapping[str, str | None] | UnsetType = UNSET


class Entry(Answer):
    """A run, a sweep or a study.

    Attributes:
        folder: Its folder.
        kind: What it is.
        time: When it was last recorded, in unix seconds.
        asked: Its overrides, each key with all of its values, or the question of a study.
        claim: `claim` of its config.
        notes: `notes` of its config.
        states: How many of its runs are in each state, as in `status`.
        metric: Of a run: the metric that decides the best checkpoint.
        best: The best value of it.
        best_num_updates: After how many updates it was.
        sentence: The verdict of a study, or of a sweep by `compare`; empty if there is none yet.
        message: Why a run failed, or why a sweep or a study has no verdict.
    """

    folder: str
    kind: Literal["run", "sweep", "study"]
    time: float
    asked: str
    claim: str
    notes: str
    states: Mapping[str, int]
    metric: str | None
    best: float | None
    best_num_updates: int | None
    sentence: str
    message: str


class Log(Answer):
    """What was asked and what came out, the newest last.

    Attributes:
        entries: Runs, sweeps and studies.
        num_earlier: How many earlier ones `--last` has left out.
    """

    entries: Sequence[Entry]
    num_earlier: int


class Predict(Answer):
    """The predictions, or the file with them (`--out`).

    Attributes:
        num_damaged: Samples that could not be read.
        rows: One for each sample.
    """

    checkpoint: str
    file: str | UnsetType = UNSET
    num_predictions: int | UnsetType = UNSET
    num_damaged: int | UnsetType = UNSET
    columns: Sequence[str] | UnsetType = UNSET
    rows: Sequence[Sequence[Any]] | UnsetType = UNSET


class ParameterGroup(Answer):
    """A group of parameters.

    Attributes:
        group: `<optimizer>.<number>`
        values: The numbers of the group.
    """

    group: str
    name: str
    num_parameters: int
    values: Mapping[str, float | None]


class Cost(Answer):
    """What a run and the sweep that it is the first of cost on this machine."""

    seconds_per_update: float
    cpu_seconds: float
    times_faster_in_fp32: float | None
    cpu_seconds_of_sweep: float


class Preview(Answer):
    """What a config would do.

    Attributes:
        is_assumed: `duration` is in seconds, so the number of updates is a guess.
        global_batch_sizes: Samples per update, by the update from which on they count.
        micro_batch_size: Samples per forward pass on one rank.
        world_size: Ranks.
        num_samples: Samples of each split.
        flops_per_sample: To evaluate a sample; training takes about 3 times that.
        gradients_gib: The state of the optimizer and the activations come on top.
        time: Seconds of an update here, and processor seconds of the updates of the run and of all jobs. For bfloat16
            on a CPU without it, how many times faster fp32 is.
        groups: The parameter groups.
        updates: At most 21 updates, or `--points`, at equal distances; schedule.json of a run has 200.
        schedules: The value of each schedule, by group and field, in `updates`.
    """

    total_updates: int
    is_assumed: bool
    global_batch_sizes: Mapping[str, int]
    micro_batch_size: Any
    world_size: int
    num_samples: Mapping[str, int]
    num_parameters: int
    num_trained_parameters: int
    flops_per_sample: Any
    weights_gib: float
    gradients_gib: float
    warnings: Sequence[str]
    time: Cost
    groups: Sequence[ParameterGroup]
    updates: Sequence[int]
    schedules: Mapping[str, Sequence[float | None]]


class Schema(Answer):
    """The JSON schemas for editors; those of answers and of study.json are in `records/`."""

    folder: str
    files: Sequence[str]


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


class Status(Answer):
    """The runs of each sweep or run.

    Attributes:
        states: How many runs of each folder are in each state.
        folders: The runs, by the folder that was given or found: of more than 10, the most urgent ones, such as running
            and failed ones. With `--all`, all.
    """

    states: Mapping[str, Mapping[str, int]]
    folders: Mapping[str, Sequence[RunProgress]]


class Stopped(Answer):
    """What became of a run or a sweep.

    Attributes:
        outcome: `stopped`; `stopping`: it still saves; `cancelled`: by SLURM; `idle`: nothing was at work there.
        pids: The processes that were asked.
        state: Of a run, as in `status`; empty for a sweep.
    """

    folder: str
    outcome: Literal["stopped", "stopping", "cancelled", "idle"]
    pids: Sequence[int] = ()
    slurm_jobs: Sequence[str] = ()
    state: str = ""


class Stop(Answer):
    """What became of each run or sweep."""

    stopped: Sequence[Stopped]


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


class Lead(Interval):
    """The leader minus another contender."""

    over: str


class Victory(Interval):
    """How much better than a beaten contender the one is that ruled it out."""

    name: str
    by: str


class Levels(Record):
    """The levels of intervals."""

    contenders: float
    leads: float
    beaten: float


class Tuned(Record):
    """The results of a tuning.

    Attributes:
        metric: By which the tuning chose.
        results: Of each contender, by the tuned values in their order: at most its best 20. null: no result.
    """

    keys: list[str]
    metric: str
    results: dict[str, dict[str, float | None]]


class StudyResult(Record):
    """What the study has found.

    Attributes:
        contenders: The best mean first.
        leads: The leader minus each other contender, of the same seeds.
        beaten: How much better than each beaten contender the one is that ruled it out.
        levels: Of the intervals: of a pair, 1 - alpha / (contenders - 1), so that all pairs of the best contender hold
            together at 1 - alpha.
        num_samples: How many samples each split has on which the first run trained and validated.
        tuning: What was tried. Without tuning, nothing.
        protocol: The protocol in words, as the study printed it before its first run.
        budget: The limits, by what they limit: runs, updates, wall_seconds, cpu_seconds.
        left: What is left of each limit.
        report: The path of study.md.
        record: The path of study.json, which has everything.
        repeat: The command that repeats the study, or continues it after a stop.
        continue: The command that continues an undecided study, with the budget and the seeds that it needs; null: more
            runs of it would not tell.
    """

    verdict: ShortVerdict
    contenders: list[Contender]
    leads: list[Lead]
    beaten: list[Victory]
    levels: Levels
    num_samples: dict[str, int]
    tuning: Tuned
    protocol: list[str]
    cost: Spent
    budget: Limits
    left: Limits
    not_tried: list[str]
    report: str
    record: str
    repeat: str
    continuing: str | None = field(name="continue")


class Study(EndedSweep):
    """How a study ended: a sweep. Its study.json has everything.

    Attributes:
        result: What the study has found.
    """

    result: StudyResult


class UploadResult(Answer):
    """The state of the W&B data of a run."""

    state: str
    detail: str


class Sync(Answer):
    """The runs with W&B data. If one has `failed`, the exit status is 1.

    Attributes:
        runs: By run folder.
    """

    runs: Mapping[str, UploadResult]


class Tokens(Answer):
    """The tokens of a split."""

    num_tokens: int
    num_files: int


class Tokenize(Answer):
    """The folder of tokens.

    Attributes:
        splits: `train` and `val`.
        overrides: They train on these tokens.
    """

    folder: str
    splits: Mapping[str, Tokens]
    vocabulary_size: int
    overrides: Sequence[str]


class Trust(Answer):
    """The trusted projects that the command is about.

    Attributes:
        trusted: The trusted packages of each folder; with `--remove` nothing.
        num_gone: With `--list`: how many trusted folders do not exist now; they are left out.
    """

    trusted: Mapping[str, Sequence[str]]
    num_gone: int = 0


ANSWERS = (Bench, Compare, Diagnose, Docs, Evaluate, Explain, Export, Init, List, Log, Predict, Preview, Schema, Status,
           Stop, Study, Sweep, Sync, Tokenize, Train, Trust)  # fmt: skip
"""The answer of each command; its name in lower case is the command."""
