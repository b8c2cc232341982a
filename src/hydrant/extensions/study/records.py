"""study.json, and what `hydrant study` prints with `--json`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, field

from hydrant.records import Amount, Count, EndedSweep, Record

Probability = Annotated[float, Meta(gt=0, lt=1)]
Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*$")]
"""A text of one line, without what moves a terminal's cursor or turns the direction of the text."""
Reason = Literal["decision", "no_difference", "failures", "budget", "seeds"]
Limits = dict[Literal["runs", "updates", "wall_seconds", "cpu_seconds"], Amount]


class Interval(Record):
    """A mean of paired differences.

    Attributes:
        num_pairs: Seeds that both have.
        low: Of the interval, which holds after each seed; null: not bounded yet.
    """

    num_pairs: int
    mean: float
    low: float | None
    high: float | None


class ShortVerdict(Record):
    """The answer.

    Attributes:
        sentence: The answer.
        ended_by: Why the study ended; failures: contenders failed, so more seeds would not tell; null: it has not
            ended.
        winner: null unless it is decided.
        leader: The contender with the best mean of those that are left.
        rival: Whom the sentence compares the leader with.
        seeds_needed: If undecided: the paired seeds that find the observed lead with the power of the protocol; null:
            unknown, or over 1,000.
    """

    ended_by: Reason | None
    seeds_needed: Count | None
    status: Literal["decided", "undecided", "no_difference"] = "undecided"
    sentence: str = ""
    winner: str | None = None
    leader: str | None = None
    rival: str | None = None


class Verdict(ShortVerdict):
    """The answer, and the lead.

    Attributes:
        lead: The leader minus the rival, in units of the metric: below 0 where less is better.
    """

    lead: Interval | None = None


class Contender(Record):
    """A contender.

    Attributes:
        best: The tuned values.
        extended: Tuned keys of which values beyond the first range were tried.
        at_end: Tuned keys whose best value is the smallest or the largest tried one.
        num_seeds: Fresh seeds with a result.
        mean: Over its fresh seeds.
        low: Of the interval of the mean at the level alpha, which holds after each seed; null: not bounded yet.
    """

    name: str
    best: dict[str, str]
    extended: list[str]
    at_end: list[str]
    num_seeds: int
    mean: float | None
    low: float | None
    high: float | None
    state: Literal["active", "beaten", "failed", "without results"]


class ContenderWithRuns(Contender):
    """A contender with all of its results.

    Attributes:
        results: With each fresh seed; null: the run has no finite result.
        runs: The folder of each of these runs, in that of the study.
        std: Over its fresh seeds.
        beaten_after: Fresh seeds.
    """

    overrides: list[str]
    results: list[float | None]
    runs: list[str | None]
    std: float | None
    beaten_by: str | None
    beaten_after: int | None


class Comparison(Interval):
    """a minus b, up to the last seed that compared them.

    Attributes:
        std: Of the paired differences.
    """

    a: str
    b: str
    std: float


class Protocol(Record):
    """What a study does, as fixed before its first run.

    Attributes:
        contenders: The overrides of each.
        common: Overrides of all that change results.
        tuning: The first values of each key, by contender.
        metric: Its last value is the result of a run.
        tuning_metric: By which the tuning chooses; null: by metric.
        alpha: The probability of a wrong answer, over all looks and contenders.
        min_difference: A smaller difference does not matter.
        rounds: Of finer values, at most.
        max_seeds: Fresh ones.
        paid_seeds: Of them, those that the runs of the budget pay for if no contender is beaten early; null: not known
            before the first run.
        pair_alpha: The level of the test of one pair.
        budget: The limits, by what they limit: runs, updates, wall_seconds, cpu_seconds.
        sentences: The protocol in words, as the study printed it before its first run.
    """

    contenders: Annotated[dict[Line, list[Line]], Meta(min_length=2)]
    tuning: dict[Line, dict[Line, list[Line]]]
    metric: Line
    mode: Literal["max", "min"]
    tuning_metric: Line | None
    alpha: Probability
    power: Probability
    min_difference: Amount | None
    first_fresh_seed: Count
    max_seeds: Count
    budget: Limits
    common: list[str] = []
    first_seed: int = 0
    rounds: int = 0
    paid_seeds: int | None = None
    pair_alpha: float = 1.0
    sentences: list[str] = []


class TunedRun(Record):
    """A run of the tuning.

    Attributes:
        run: Its folder; null: no config has these values.
        state: As in `hydrant status`; `refused`: no config has these values.
    """

    contender: str
    values: dict[str, str]
    result: float | None
    run: str | None
    state: str


class Tuning(Record):
    """What was tried.

    Attributes:
        num_rounds: Of finer values.
    """

    num_rounds: int = 0
    is_finished: bool = False
    trials: list[TunedRun] = []


class Spent(Record):
    """What was used.

    Attributes:
        runs: Runs that have begun.
        wall_seconds: Over all starts, from the composed config of the command on.
        cpu_seconds: Of all processes that were not killed, also on other machines.
    """

    wall_seconds: Amount
    cpu_seconds: Amount
    runs: float = 0.0
    updates: float = 0.0


class Cost(Spent, kw_only=True):
    """What all starts have used.

    Attributes:
        num_starts: Of the command, the first and those that trained a run.
        as_of: When this was written, in unix seconds.
    """

    num_starts: Count
    as_of: Amount


class StudyFile(Record):
    """study.json: what a study asked, did and answered. Within a version, fields are only added.

    Attributes:
        is_running: Whether the study goes on. True also if it was killed.
        environment: On what the first run was trained, as its summary.json says.
        num_samples: How many samples each split has on which the first run trained and validated.
        commands: They repeat the study, compare its runs, and train the winner.
        continue: The command that continues an undecided study, with the budget and the seeds that it needs; null: more
            runs of it would not tell.
    """

    is_running: bool
    verdict: Verdict
    protocol: Protocol
    cost: Cost
    version: Literal[1] = 1
    question: str = ""
    contenders: list[ContenderWithRuns] = []
    comparisons: list[Comparison] = []
    tuning: Tuning = field(default_factory=Tuning)
    environment: dict[str, Any] = {}
    not_tried: list[str] = []
    commands: list[str] = []
    num_samples: dict[str, int] | UnsetType = UNSET
    continuing: str | UnsetType | None = field(name="continue", default=UNSET)


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
        leads: The leader minus each other contender, of the same seeds: below 0 where less is better.
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
