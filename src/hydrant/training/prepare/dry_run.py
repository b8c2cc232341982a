"""Checks, on the host and before anything starts, that the parts of a config fit each other."""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from hydrant.batch import Batch, Outcome, tensors_of
from hydrant.checks import suggestion
from hydrant.clock import SampleCosts, batch_size_steps
from hydrant.config.metric_keys import unknown_mode
from hydrant.config.user_errors import place
from hydrant.data import Data, Source, StreamSpec
from hydrant.data.augment import Mixing, MixupCutmix
from hydrant.data.base import ON_HOST
from hydrant.errors import ConfigError, DataError, typed_line
from hydrant.tasks.base import eval_mode
from hydrant.training.distributed.ddp import Collective
from hydrant.training.distributed.world import World
from hydrant.training.metrics import check_measurement, is_own, try_metrics
from hydrant.training.precision import Precision
from hydrant.training.prepare.check_samples import written_buffers
from hydrant.training.prepare.explain_failure import explain_failure
from hydrant.training.profiling import Flops, count_flops
from hydrant.training.training_trial import training_trial

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
T = TypeVar("T")


def make_stream_spec(
    config: Mapping[str, Any], world: World, num_samples: int, costs: SampleCosts, doubles: torch.dtype
) -> StreamSpec:
    """Divide the samples of every update among ranks and micro-batches, all of which have the same size.

    Raises:
        ConfigError: they cannot be divided.
    """
    batch_sizes = batch_size_steps(config["global_batch_size"], num_samples, costs)
    micro, ranks = config["micro_batch_size"], world.world_size
    for batch_size in batch_sizes.values:
        if batch_size > num_samples:
            limit = "" if config["limit_train_samples"] is None else " (limit_train_samples)"
            message = f"{batch_size} is more than the {num_samples} training samples there are{limit}"
            raise ConfigError("global_batch_size", message, remedy=f"give {num_samples} or fewer")
        if batch_size % ranks:
            below = batch_size - batch_size % ranks
            near = f"{below} or {below + ranks}" if below else str(ranks)
            key = "limit_train_samples" if config["global_batch_size"] == "all" else "global_batch_size"
            if config[key] is None:  # there are no more samples
                near = below or f"no number below {ranks}"
            raise ConfigError(key, f"{batch_size} is not divisible by {ranks} ranks; {near} is")
    shared = math.gcd(*batch_sizes.values) // ranks
    micro = shared if micro in (None, "auto") else micro
    if shared % micro:
        divisors = ", ".join(str(n) for n in range(1, shared + 1) if shared % n == 0)
        sizes = ", ".join(map(str, batch_sizes.values))
        message = f"{micro} samples on each of {ranks} rank(s) do not divide global_batch_size={sizes}"
        raise ConfigError("micro_batch_size", f"{message}; these do: {divisors}")
    return StreamSpec(config["seed"], batch_sizes, micro, world.rank, ranks, world.device, doubles)


def scaled_lr(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the lr for this batch size, scaled from `lr_base_size` by `lr_scaling` (Goyal et al., 2017; timm).

    Without `lr_scaling` the result is empty.

    Raises:
        ConfigError: the optimizer has no lr, or the batch size changes.
    """
    rule, batch_size = config["lr_scaling"], config["global_batch_size"]
    if rule is None:
        return {}
    if isinstance(batch_size, Mapping):
        message = "scales to one batch size, but global_batch_size has several; schedule the lr instead"
        raise ConfigError("lr_scaling", f"{message}, such as by scheduler=multistep")
    if batch_size == "all":
        message = "needs a number of samples to scale to, not global_batch_size=all; give the number"
        raise ConfigError("lr_scaling", message)
    ratio = batch_size / config["lr_base_size"]
    if "lr" not in config["optimizer"]:
        raise ConfigError("lr_scaling", "this optimizer has no lr to scale", remedy="leave lr_scaling out")
    return {"lr": config["optimizer"]["lr"] * (ratio if rule == "linear" else ratio**0.5)}


def read_samples(data: Data, source: Source, num_samples: int) -> Batch:
    """Return `num_samples` samples in a row that can be read, or all if there are fewer, on the host.

    Raises:
        ConfigError: the batches of the source have another size than asked for.
        DataError: no such samples can be read.
    """
    num_samples = min(num_samples, source.num_samples)
    kind = type(source).__name__
    sizes = set[int]()
    for limit in (num_samples, source.num_samples):
        for batch in source.subset(range(limit)).batches(ON_HOST, num_samples):
            sizes.add(size := batch.num_samples)
            if size == num_samples:
                return batch
            if size > num_samples:
                break
    if sizes and (max(sizes) > num_samples or not data.damaged.num_damaged):
        wrong = f"{max(sizes)} samples, but batch_size={num_samples} asks for {num_samples}"
        raise ConfigError("data", f"{kind}.batches gives a batch of {wrong}")
    if not data.damaged.num_damaged:
        message = f"{kind}.batches gives no batch, although it has {source.num_samples} samples"
        raise ConfigError("data", message)
    what = "sample" if num_samples == 1 else f"{num_samples} samples in a row"
    raise DataError(f"no {what} can be read; the log names the damaged ones")


class DryForward(NamedTuple):
    """What a task returned on the host for some samples."""

    flops: int  # of a sample in training
    uncounted: str  # why `flops` is 0; "" if it is counted
    collectives: Sequence[Collective]  # of a forward pass in training
    batch: Batch  # of validation samples
    outcome: Outcome
    metric_names: list[str]  # of the values of the task's metrics
    train_batch: Batch
    written_buffers: Sequence[str]  # by a forward pass in training; batch norm statistics are left out

    @property
    def targets_per_sample(self) -> int:
        """The number of targets of a sample, at least 1."""
        return max(int(self.outcome.num_targets) // self.batch.num_samples, 1)

    @property
    def costs(self) -> SampleCosts:
        """What durations in tokens and FLOPs count. Training takes three times the FLOPs of a forward pass: Kaplan et
        al., "Scaling laws for neural language models", 2020, section 2.1."""
        return SampleCosts(_tokens_per_sample(self.batch), 3 * self.flops)

    @property
    def losses(self) -> set[str]:
        """The names under which evaluations report losses."""
        return {"loss", *(self.outcome.losses if len(self.outcome.losses) > 1 else ())}


def _tokens_per_sample(batch: Batch) -> int:
    """Return L, if inputs and targets are tokens of a language model: integers of shape (B, L); else 0.

    Padding and targets that do not count are among them.
    """
    targets = batch.targets
    if not _is_integer(targets) or targets.ndim != 2:
        return 0
    has_tokens = any(_is_integer(x) and x.shape == targets.shape for x in tensors_of(batch.inputs))
    return targets.shape[1] if has_tokens else 0


def _is_integer(value: Any) -> bool:
    is_number = isinstance(value, torch.Tensor) and value.dtype is not torch.bool
    return is_number and not (value.is_floating_point() or value.is_complex())


@dataclass(frozen=True)
class Trials:
    """Calls a task on the host as its run will: with two samples and, if it fails on them, with as many as in the run.

    Args:
        task: on the host, in training mode, with weights in the dtype of the run.
        data: of the run.
        precision: of the run.
        config: of the run.
        world: of the run.
    """

    task: Any
    data: Data
    precision: Precision
    config: Mapping[str, Any]
    world: World

    def evaluate(self, source: Source, split: str = "") -> tuple[Batch, Outcome]:
        """Return samples of a source, and the outcome for them in an evaluation.

        Raises:
            ConfigError: the model does not fit the samples.
        """
        size = min(self.config["eval_batch_size"], max(source.num_samples // self.world.world_size, 1))
        return self._try(f"an evaluation{split and f' of {split}'}", source, lambda: size, self.outcome)

    def train(self) -> tuple[Batch, tuple[Flops, list[str]]]:
        """Return training samples, the FLOPs of one of them, and the buffers that training writes.

        Raises:
            ConfigError: the model does not fit the samples.
        """
        source = self.data.train

        def size() -> int:
            any_costs = SampleCosts(1, 1)  # they say when a batch grows, not to which size
            spec = make_stream_spec(self.config, self.world, source.num_samples, any_costs, torch.float32)
            return spec.micro_batch_size

        return self._try("training", source, size, self._train)

    def forward(self, batch: Batch) -> Outcome:
        """Return the outcome for a batch in the precision of the run."""
        return self.precision.around(lambda task, batch: task.forward(batch))(self.task, batch)

    def outcome(self, batch: Batch) -> Outcome:
        """Return the outcome for a batch in an evaluation.

        Raises:
            ConfigError: it takes a derivative, which an evaluation does not allow for.
        """
        with eval_mode(self.task):
            try:
                with torch.no_grad():
                    return self.forward(batch)
            except Exception as error:  # a user's model may raise anything
                try:
                    self.forward(batch)
                except Exception:
                    raise error from None
                message = f"takes a derivative, but evaluations and predictions run without them: {typed_line(error)}"
                remedy = "compute it in a block `with torch.enable_grad():`"
                raise ConfigError("model", f"{message} (at {place(error)})", remedy=remedy) from error

    def _train(self, batch: Batch) -> tuple[Flops, list[str]]:
        with training_trial(self.task):
            return written_buffers(self.task, lambda: count_flops(batch, self.forward))

    def _try(
        self, kind: str, source: Source, size: Callable[[], int], call: Callable[[Batch], T]
    ) -> tuple[Batch, T]:
        def attempt(num_samples: int) -> tuple[Batch, T]:
            batch = read_samples(self.data, source, num_samples)
            with explain_failure(self.task, batch, kind):
                return batch, call(batch)

        try:
            return attempt(2)
        except Exception as error:  # a user's model may raise anything
            if isinstance(error, ConfigError) and error.__cause__ is None:
                raise  # of the task, about each sample
            return attempt(size())


def dry_forward(trials: Trials) -> DryForward:
    """Run the task on the host: in an evaluation, its metrics, and in training.

    Raises:
        ConfigError: the model does not fit the data, a measurement is neither a scalar nor bool, or a metric does not
            fit the task.
    """
    task = trials.task
    with _values_read(task):
        batch, outcome = trials.evaluate(trials.data.val)
    for name, value in outcome.measurements.items():
        if not torch.is_tensor(value):  # a user's task may return anything
            raise ConfigError("task", f"measures {name!r} as {value!r}, which is not a tensor")
        check_measurement(name, value.dtype, value.shape)
    for name in outcome.scalars():
        if is_own(name):
            message = (
                f"measures {name!r}, but the run writes the metrics of this group itself; choose another name"
            )
            raise ConfigError("task", message)
    metric_names = try_metrics(task, batch, outcome)
    if double := next((name for name in metric_names if name in outcome.scalars()), None):
        message = f"the task measures {double!r} itself, and the metric would replace it; choose another name"
        raise ConfigError(f"task.metrics.{double}", message)
    with _values_read(task):
        train_batch, (flops, written) = trials.train()
    return DryForward(*flops, batch, outcome, metric_names, train_batch, written)


@contextlib.contextmanager
def _values_read(task: Any) -> Generator[None]:
    """Let a task read the numbers of a batch, to check them."""
    task.reads_values = True
    try:
        yield
    finally:
        del task.reads_values  # the class says False; lanes of a stack must have the same attributes


def check_batch_norm(trials: Trials, micro_batch_size: int) -> None:
    """Check that batch norm gets more than one value per channel where a micro-batch has one sample.

    Raises:
        ConfigError: it gets a single value, which has no variance.
    """
    task, data = trials.task, trials.data
    if micro_batch_size > 1 or not any(isinstance(module, _BATCH_NORMS) for module in task.modules()):
        return
    try:
        with training_trial(task):
            trials.forward(read_samples(data, data.train, 1))
    except ValueError as error:
        if not str(error).startswith("Expected more than 1 value per channel"):
            raise
        message = "1 sample gives batch norm of this model one value per channel, which has no variance"
        remedy = "give a micro_batch_size of 2 or more (and such a global_batch_size), larger inputs"
        raise ConfigError("micro_batch_size", f"{message}; {remedy}, or another model") from error


def dry_mixing(trials: Trials, batch: Batch, mixing: Mixing) -> None:
    """Run the task on a batch, mixed, on the host.

    Raises:
        ConfigError: the mixing does not fit the data or the task.
    """
    if isinstance(mixing, MixupCutmix) and (ignored := trials.task.ignore_index) is not None:
        message = f"targets that do not count (task.ignore_index={ignored}) cannot be mixed"
        raise ConfigError("mixing", message, remedy="use mixing=none, or task.ignore_index=null")
    try:
        mixed = mixing(batch, 0, 0, 0)
        if mixed is not batch:
            trials.outcome(mixed)
    except Exception as error:  # timm and a user's task may raise anything
        message = f"does not fit this data and task: {typed_line(error)} (at {place(error)})"
        raise ConfigError("mixing", message, remedy="use mixing=none") from error


def eval_metrics(prefixes: Sequence[str], dry: DryForward) -> frozenset[str]:
    """Return the names of the metrics that evaluations report under these prefixes, such as `val/accuracy`.

    Raises:
        ConfigError: a further validation set and a metric make the same name.
    """
    names, measured = set[str](), {*dry.losses, *dry.outcome.measurements, *dry.metric_names}
    for prefix in prefixes:
        own = {f"{prefix}/{name}" for name in measured}
        if double := min(names & own, default=""):
            message = f"{double} would be of the validation set {prefix.partition('/')[2]} and of a metric"
            raise ConfigError("data.extra_val", message, remedy="rename one of the two")
        names |= own
    return frozenset(names)


def check_best(key: str, metric: str, mode: str, prefixes: Sequence[str], dry: DryForward) -> None:
    """Check that evaluations report a metric, and that a loss is not maximised. `key` begins the config keys.

    Raises:
        ConfigError: the metric or the mode is wrong.
    """
    names = eval_metrics(prefixes, dry)
    if metric not in names:
        raise ConfigError(f"{key}metric", f"no evaluation gives {metric!r}", remedy=suggestion(metric, names))
    if mode == "auto":
        raise unknown_mode(f"{key}mode", metric)
    losses = {f"{prefix}/{name}" for prefix in prefixes for name in dry.losses}
    if metric in losses and mode == "max":
        raise ConfigError(f"{key}mode", f"the best {metric} is the lowest", remedy=f"give {key}mode=min")
