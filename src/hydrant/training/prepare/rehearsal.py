"""The rehearsal of a run, on the host and before anything starts: its task is called as the run will call it.

Nothing is left of a rehearsal. A part of what a checkpoint holds is written and read back in memory. Optimizers are
tried on stand-ins: see `check_steps`.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # noqa: PLC2701  # what its layers share

from hydrant import seeding
from hydrant.batch import Batch, Outcome, as_real, is_inexact, leaves_of, tensors_of
from hydrant.clock import SampleCosts, batch_size_steps
from hydrant.config.metric_keys import unknown_mode
from hydrant.data import BatchSource, Data, PositionedSource, Source, StreamSpec
from hydrant.data.base import ON_HOST, Mixing, digest_of_samples
from hydrant.errors import ConfigError, DataError, first_line, log, suggestion, traced
from hydrant.tasks.base import eval_mode, explain_unknown_class, kept_buffers
from hydrant.training.checkpoint.storage import split
from hydrant.training.costs import Flops, count_flops
from hydrant.training.distributed.world import World
from hydrant.training.hooks import Hooks
from hydrant.training.metrics import check_measurement, is_own, try_metrics
from hydrant.training.precision import Precision

T = TypeVar("T")
_Numbers = dict[str, Tensor]


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
        raise ConfigError("micro_batch_size", message, remedy=f"these do: {divisors}")
    return StreamSpec(config["seed"], batch_sizes, micro, world.rank, ranks, world.device, doubles)


def read_samples(data: Data, source: Source, num_samples: int) -> Batch:
    """Return `num_samples` samples in a row that can be read, or all if there are fewer, on the host.

    Raises:
        DataError: no such samples can be read.
    """
    num_samples = min(num_samples, source.num_samples)
    for limit in (num_samples, source.num_samples):
        batch: Batch | None = None
        is_whole = isinstance(source, BatchSource)  # its batches belong together
        part = source if is_whole else source.subset(range(limit))
        for batch in part.batches(ON_HOST, num_samples):
            if is_whole or batch.num_samples == num_samples:
                return batch
        if batch is not None and not data.damaged.num_damaged:
            message = "data: a batch of %d samples has %d rows, by which its mean loss counts, unless a task of yours "
            log.warning(message + "gives num_targets", num_samples, batch.num_samples)
            return batch
    hint = "; the log names the damaged ones" if data.damaged.num_damaged else ""
    raise DataError(f"{type(source).__name__}: {num_samples} sample(s) in a row cannot be read{hint}")


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same numbers. NaN is equal to itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if torch.equal(one, other):
        return True
    return is_inexact(one) and torch.equal(*(torch.nan_to_num(as_real(tensor)) for tensor in (one, other)))


@contextmanager
def rehearsal(task: Any) -> Generator[None]:
    """Restore the modes, attributes and buffers of a task on the host after this block, and the random states.

    An attribute that a forward pass assigns, such as a count of calls, is restored; a list that it extends is not. A
    layer that makes its weights or parts from the samples keeps all of its attributes.
    """
    attributes = [(module, _structure(module), dict(vars(module))) for module in task.modules()]
    try:
        with seeding.kept_generators(), kept_buffers(task):
            yield
    finally:
        for module, structure, before in attributes:
            if _structure(module) == structure:
                vars(module).clear()
                vars(module).update(before)
            module.training = before["training"]


def _structure(module: nn.Module) -> tuple[Any, ...]:
    """Return the class of a module, the classes of its weights, and the names of its parts."""
    weights = {name: type(weight) for name, weight in module.named_parameters(recurse=False)}
    return type(module), weights, [name for name, _ in module.named_children()]


@contextmanager
def explain_failure(task: Any, batch: Batch, kind: str) -> Generator[None]:
    """Raise a ConfigError with shapes, types and the place, whatever error a task raises in a trial.

    Args:
        task: is tried.
        batch: on which it is tried.
        kind: what is tried, such as `training`.
    """
    try:
        with explain_unknown_class():
            yield
    except ConfigError:
        raise
    except Exception as error:  # a user's model may raise anything, and there is no train.log yet
        modules = {id(module) for module in task.model.modules()}
        callers = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
        key = "model" if any(id(caller) in modules for caller in callers) else "task"
        at = "fails in a trial of {}, on inputs of {} and targets of {}".format(kind, *map(_form, batch))
        remedy = "Correct the model, the task or the data"
        if kind != "training" and "does not require grad" in str(error):
            remedy = "Compute derivatives, which evaluations switch off, in `with torch.enable_grad():`"
        raise ConfigError(key, f"{at}: {traced(error)}", remedy=remedy) from error


def _form(tree: Any) -> str:
    """Describe a tensor by its shape and type, and other values by their class and what is in them."""
    if isinstance(tree, Tensor):
        return f"shape {list(tree.shape)} and type {tree.dtype}"
    parts = dict.fromkeys(_form(leaf) for leaf in leaves_of(tree) if leaf is not tree)
    return f"type {type(tree).__name__}" + (f" with {', '.join(parts)}" if parts else "")


def written_buffers(task: nn.Module, forward: Callable[[], tuple[T, Outcome]]) -> tuple[T, list[str]]:
    """Make a forward pass in training; return the first thing that it returns, and the names of the buffers that it
    changes, without the statistics of batch norms.

    Warn if the loss of another pass depends on numbers, tensors and buffers that the first one changes and that no
    checkpoint holds. It has the same samples, random numbers and saved buffers. Warn also if the first one, beside such
    a change, writes weights, as a layer does that takes its first ones from the samples.
    """
    buffers, weights = _copies(dict(task.named_buffers())), _first_numbers(task)
    kept, saved = _not_saved(task), task.state_dict().keys()
    seeding.seed_process(0)
    first, outcome = forward()
    written = _changed(buffers, _copies(dict(task.named_buffers())))
    if names := _changed(kept, _not_saved(task)):
        for name in buffers.keys() & saved:
            owner, _, own_name = name.rpartition(".")
            setattr(task.get_submodule(owner), own_name, buffers[name])
        seeding.seed_process(0)
        writes_weights = _changed(_first_numbers(task), weights)  # of the weights that were there before
        if writes_weights or not are_equal(outcome.total_loss(), forward()[1].total_loss()):
            log.warning(
                "model: training changes %s, which no checkpoint holds: a run that continues, and evaluate, predict "
                "and export, begin with the first value; make it a buffer (register_buffer)",
                ", ".join(names),
            )
    norms = [f"{path}." for path, module in task.named_modules() if isinstance(module, _NormBase)]
    return first, [name for name in written if not name.startswith(tuple(norms))]


def _not_saved(task: nn.Module) -> _Numbers:
    """Return the numbers and tensors of a task that no checkpoint holds."""
    saved = task.state_dict().keys()
    values = dict[str, Any]({name: value for name, value in task.named_buffers() if name not in saved})
    for path, module in task.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:  # else checkpoints hold what it gives
            values |= {f"{path}.{name}".lstrip("."): value for name, value in vars(module).items()}
    return _copies(values)


def _first_numbers(task: nn.Module) -> _Numbers:
    """Return the first number of each weight, which a forward pass that writes the weight changes."""
    made = [(name, weight) for name, weight in task.named_parameters() if not nn.parameter.is_lazy(weight)]
    return _copies({name: weight.detach().flatten()[:1] for name, weight in made if not weight.is_sparse})


def _copies(values: Mapping[str, Any]) -> _Numbers:
    """Return the numbers and tensors that can be compared, copied."""
    numbers = _Numbers()
    for name, value in values.items():
        if type(value) in (bool, int, float):
            numbers[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            numbers[name] = value.detach().clone()
    return numbers


def _changed(before: _Numbers, now: _Numbers) -> list[str]:
    """Return the names of the values that are new or others."""
    return [name for name, value in now.items() if name not in before or not are_equal(before[name], value)]


class DryForward(NamedTuple):
    """What a task returned on the host for some samples."""

    flops: Flops  # in training
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
        return SampleCosts(_tokens_per_sample(self.batch), 3 * self.flops.per_sample)

    @property
    def losses(self) -> set[str]:
        """The names under which evaluations report losses."""
        return {*self.outcome._replace(measurements={}).scalars()}


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
class Rehearsal:
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
        return self.attempt(f"an evaluation{split and f' of {split}'}", source, size, self.outcome)

    def train(self) -> tuple[Batch, tuple[Flops, list[str]]]:
        """Return training samples, the FLOPs of one of them, and the buffers that training writes.

        Raises:
            ConfigError: the model does not fit the samples.
        """

        def call(batch: Batch) -> tuple[Flops, list[str]]:
            counted = self.data.batch_for_flops(batch)
            return written_buffers(self.task, lambda: count_flops(counted, self.forward))

        return self.attempt("training", self.data.train, self.train_size, call)

    @property
    def train_size(self) -> int:
        """The samples with which the task computes at once: of a micro-batch, or of those that ranks normalize."""
        any_costs = SampleCosts(1, 1)  # costs say when a batch grows, not to which size
        num_samples = self.data.train.num_samples
        spec = make_stream_spec(self.config, self.world, num_samples, any_costs, torch.float32)
        num_ranks = spec.world_size if self.config["parallel"].get("sync_batch_norm") else 1
        return spec.micro_batch_size * num_ranks

    def forward(self, batch: Batch) -> Outcome:
        """Return the outcome for a batch in the precision of the run.

        Raises:
            ConfigError: the task carries what is not divided as the batch is, or has no losses in training.
        """
        outcome = self.precision.around(lambda task, batch: task.forward(batch))(self.task, batch)
        if self.task.training and not outcome.losses:
            raise ConfigError("task", "returns no losses in training", remedy="return an Outcome with one")
        for shape in (tensor.shape for tensor in tensors_of(outcome.carried)):
            if shape[:1] != (batch.num_samples,):
                message = f"carries a tensor of shape {[*shape]} from {batch.num_samples} samples"
                raise ConfigError("task", message, remedy="carry tensors (B, ...), with the samples first")
        return outcome

    def outcome(self, batch: Batch) -> Outcome:
        """Return the outcome for a batch in an evaluation."""
        with eval_mode(self.task), torch.no_grad():
            return self.forward(batch)

    def attempt(self, kind: str, source: Source, size: int, call: Callable[[Batch], T]) -> tuple[Batch, T]:
        """Return samples and what a call gives for them: for two; if it fails on them, for `size`.

        Raises:
            ConfigError: it fails on these too. `kind` names what is tried.
        """

        def with_samples(num_samples: int) -> tuple[Batch, T]:
            batch = read_samples(self.data, source, num_samples)
            with rehearsal(self.task), explain_failure(self.task, batch, kind):
                return batch, call(batch)

        try:
            return with_samples(min(2, size))
        except ConfigError as error:
            if error.__cause__ is None or size <= 2:
                raise  # of the task, about each sample
            return with_samples(size)


def check_ranks_read_alike(stream: PositionedSource, dry: DryForward, world: World) -> None:
    """Check that the splits of a stream have the same first samples on every rank: each keeps a part of what all read.

    Raises:
        ConfigError: they differ, so the stream has been divided before.
    """
    for key, batch in (("data.train", dry.train_batch), ("data.val", dry.batch)):
        divided = stream.is_divided and key == "data.train"
        if not divided and len({*world.all_gather(digest_of_samples([batch]))}) > 1:
            train = "set data.divided=true (without limit_train_samples) if the ranks divide it, or "
            remedy = f"{train * (key == 'data.train')}read the same samples on each rank"
            raise ConfigError(key, "each rank reads other samples, and keeps a part of them", remedy=remedy)


def dry_forward(trials: Rehearsal) -> DryForward:
    """Run the task on the host: in an evaluation, its metrics, and in training.

    Raises:
        ConfigError: the model does not fit the data, a measurement is neither a scalar nor bool, or a metric does not
            fit the task.
    """
    if trials.config["eval_every"] is None:
        batch, outcome = trials.attempt("training", trials.data.train, trials.train_size, trials.outcome)
    else:
        batch, outcome = trials.evaluate(trials.data.val)
    for name, value in {**outcome.losses, **outcome.measurements}.items():
        if not torch.is_tensor(value):  # a user's task may return anything
            raise ConfigError("task", f"measures {name!r} as {value!r}, which is not a tensor")
        check_measurement(name, value.dtype, value.shape)
    for name in outcome.scalars():
        if is_own(name):
            message = f"measures {name!r}, but the run writes the metrics of this group itself"
            raise ConfigError("task", message, remedy="choose another name")
    metric_names = try_metrics(trials.task, batch, outcome)
    if double := next((name for name in metric_names if name in outcome.scalars()), None):
        message = f"the task measures {double!r} itself, and the metric would replace it"
        raise ConfigError(f"task.metrics.{double}", message, remedy="choose another name")
    train_batch, (flops, written) = trials.train()
    return DryForward(flops, batch, outcome, metric_names, train_batch, written)


def dry_mixing(trials: Rehearsal, batch: Batch, mixing: Mixing) -> None:
    """Run the task on a batch, mixed, on the host.

    Raises:
        ConfigError: the mixing does not fit the data or the task.
    """
    if getattr(mixing, "needs_classes", False) and (ignored := trials.task.ignore_index) is not None:
        message = f"targets that do not count (task.ignore_index={ignored}) cannot be mixed"
        raise ConfigError("mixing", message, remedy="use mixing=none, or task.ignore_index=null")
    try:
        mixed = mixing(batch, 0, 0, 0)
        if mixed is not batch:
            with rehearsal(trials.task):
                trials.outcome(mixed)
    except Exception as error:  # timm and a user's task may raise anything
        message = f"does not fit this data and task: {traced(error)}"
        raise ConfigError("mixing", message, remedy="use mixing=none") from error


def eval_metrics(prefixes: Sequence[str], dry: DryForward) -> frozenset[str]:
    """Return the names of the metrics that evaluations report under these prefixes, such as `val/accuracy`.

    Raises:
        ConfigError: a further validation set and a metric make the same name.
    """
    names, measured = set[str](), {*dry.losses, *dry.outcome.measurements, *dry.metric_names}
    for prefix in prefixes:
        reported = {f"{prefix}/{name}" for name in measured}
        if double := min(names & reported, default=""):
            message = f"{double} would be of the validation set {prefix.partition('/')[2]} and of a metric"
            raise ConfigError("data.extra_val", message, remedy="rename one of the two")
        names |= reported
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


_MAX_SAVED_SIDE = 2
"""The largest size of a dimension in the tensors that are tried."""


@torch.no_grad()
def check_saving(task: nn.Module, hooks: Hooks) -> None:
    """Write a part of each tensor of the task as a checkpoint does, and read it back into its place.

    Raises:
        ConfigError: a tensor, or the state of a hook, cannot be written or read.
    """
    for name, value in task.state_dict().items():
        try:
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                kind = getattr(value, "layout", type(value).__name__)
                raise TypeError(f"{kind} is not a strided tensor")
            if not value.is_meta:
                part = value.detach()[tuple(slice(_MAX_SAVED_SIDE) for _ in value.shape)]
                part.copy_(load(save({"": part.contiguous()}))[""])  # the values that it has
        except Exception as error:  # a kind of tensor fails by anything
            key = "model" if name.startswith("model.") else "task"
            short = name.removeprefix("model.")
            message = f"{short} cannot be saved and read again: {first_line(error) or type(error).__name__}"
            remedy = (
                "make it a contiguous tensor with a memory of its own, in a type of safetensors (complex64, so not "
                "precision=fp64), or, if training does not change it, "
            )
            raise ConfigError(key, message, remedy=f"{remedy}a buffer with persistent=False") from error
    try:
        split(hooks.state_dict(), {})
    except Exception as error:  # a user's hook returns anything
        raise ConfigError("hooks", f"their state cannot be saved: {first_line(error)}") from error
