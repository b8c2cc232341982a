"""The types in those files of a run folder that are read again. A file with other types is damaged.

A number that is not finite is `null` in JSON.
"""

from typing import Any, Literal, TypedDict


class Best(TypedDict):
    """The best evaluation."""

    metric: str
    value: float | None
    num_updates: int


class Error(TypedDict):
    """Why a run failed."""

    type: str
    message: str


class Compiled(TypedDict):
    """What torch.compile did."""

    graphs: int
    graph_breaks: int
    recompiles: int
    seconds: float


class Environment(TypedDict, total=False):
    """Where a run was started."""

    torch: str | None
    gpu: str | None
    world_size: int | None
    slurm_job: str | None
    git_commit: str | None
    git_dirty: bool | None


class TrackedRun(TypedDict, total=False):
    """The W&B run."""

    id: str | None
    mode: str | None
    path: str | None


class Objective(TypedDict):
    """A metric that a study optimizes."""

    metric: str
    mode: Literal["max", "min"]


class Trial(TypedDict):
    """The trial of a study."""

    number: int
    objectives: list[Objective]


class Stretch(TypedDict):
    """Updates that one config trained, of a run that continued with another one. The last stretch has no end."""

    begin: int
    end: int | None
    config: dict[str, Any]


class Progress(TypedDict):
    """What every summary has."""

    status: Literal["running", "finished", "failed", "preempted"]
    num_updates: int


class Summary(Progress, total=False):
    """summary.json."""

    total_updates: int | None
    metrics: dict[str, float | None] | None
    best: Best | None
    environment: Environment | None
    host: str | None
    num_parameters: int | None
    num_samples: dict[str, int] | None
    flops_per_sample: int | None
    orthogonalized_in: str | None
    loss_of_batch: int | None
    compile: Compiled | None
    perf: dict[str, float | None] | None
    wandb: TrackedRun | None
    error: Error | None
    trial: Trial | None
    pruned: bool | None
    stretches: list[Stretch] | None


class SavedConfig(TypedDict, total=False):
    """config.yaml. Its other keys are checked when a run is built from it, or are only shown."""

    allow_targets: list[str]
    micro_batch_size: int | None
    resume: str | None


class Runtime(TypedDict):
    """The option of each config group."""

    choices: dict[str, str | None]


class Hydra(TypedDict):
    """What Hydra knew about the run."""

    runtime: Runtime


class HydraSettings(TypedDict):
    """.hydra/hydra.yaml."""

    hydra: Hydra
