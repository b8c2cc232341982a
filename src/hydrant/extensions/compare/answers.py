"""What `hydrant compare` prints with `--json`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from hydrant.records.answers import Answer, SweepVerdict


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
    study: SweepVerdict | None
    factorial: Factorial | None
    caution: str
    num_samples: Mapping[str, int]
    groups: Sequence[Compared]
    warnings: Sequence[str | Mapping[str, Any]]
    num_runs: int | UnsetType = UNSET
    states: Mapping[str, int] | UnsetType = UNSET
    num_groups: int | UnsetType = UNSET
    num_warnings: int | UnsetType = UNSET
