"""The optimizers of a run: the parameters that each one trains, its groups, schedules, clipping and losses.

Each is tried before anything starts: it makes steps on small stand-ins of the weights, and its state is saved and
restored.
"""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import Outcome, as_real
from hydrant.clock import Clock
from hydrant.config.instantiate import as_config_error, awaits_optimizer, check_arguments, instantiate_node
from hydrant.errors import ConfigError, check_known, first_line, prefix_error_keys
from hydrant.installation import entry_points
from hydrant.optimizers import kernels, scheduled_fields
from hydrant.optimizers.param_groups import check_fields, param_groups, sparse_parameters, split_parameters
from hydrant.safety.targets import locate
from hydrant.schedules import Schedule
from hydrant.training.checkpoint.storage import join, split
from hydrant.training.compilation import Compilation
from hydrant.training.costs import is_out_of_memory
from hydrant.training.precision import Precision
from hydrant.training.trainer import Plan
from hydrant.training.update import OptimizerEntry, Optimizers

MakeStep = Callable[[Optimizer, Collection[str]], kernels.OptimizerStep]
"""Returns the step of an optimizer, given its scheduled fields."""


def named_settings(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each optimizer. Without `optimizers` there is one, `main`, with the top-level settings."""
    return dict(config["optimizers"]) or {"main": {**config, "parts": None, "losses": None}}


def make_schedules(
    config: Mapping[str, Any], clock: Clock, like: Plan | None = None
) -> scheduled_fields.Schedules:
    """Build every schedule of the config.

    Args:
        config: of the run.
        clock: of the run.
        like: has the same clock. Schedules without a state that are configured alike are shared with it.

    Raises:
        ConfigError: a schedule cannot be built.
    """
    shared = dict[tuple[str, str], tuple[Mapping[str, Any], Schedule]]()
    if like is not None:
        for name, settings in named_settings(like.config).items():
            for field, node in _scheduled(settings):
                if isinstance(schedule := like.schedules[name][field], Schedule):
                    shared[name, field] = node, schedule
    made = dict[str, dict[str, scheduled_fields.AnySchedule]]()
    for name, settings in named_settings(config).items():
        made[name] = {}
        for field, node in _scheduled(settings):
            other, schedule = shared.get((name, field), (None, None))
            if schedule is None or other != node:
                key = scheduled_fields.config_key(name, field)
                with as_config_error(key, node), prefix_error_keys(f"{key}."):
                    schedule = _make_schedule(node, clock)
            made[name][field] = schedule
    return made


def _make_schedule(node: Mapping[str, Any], clock: Clock) -> Any:
    make, target = instantiate_node(node), locate(node["_target_"], "_target_")
    stepped = entry_points("hydrant.schedules").get("stepped")
    if stepped and awaits_optimizer(target, node):
        make = partial(stepped.load(), fn=make, every=1)
    return make(clock)


def flat_schedules(schedules: scheduled_fields.Schedules) -> dict[str, scheduled_fields.AnySchedule]:
    """Return the schedules by their config keys."""
    return {
        scheduled_fields.config_key(name, field): s
        for name, fields in schedules.items()
        for field, s in fields.items()
    }


def make_optimizers(
    config: Mapping[str, Any],
    task: Any,
    schedules: scheduled_fields.Schedules,
    precision: Precision,
    compilation: Compilation,
    make_step: MakeStep = kernels.OptimizerStep,
) -> Optimizers:
    """Build the optimizers over the present parameters of a task.

    Steps that are compiled need no kernel of torch.

    Raises:
        ConfigError: the optimizers, their groups or their schedules do not fit the task.
    """
    settings_by_name = named_settings(config)
    parts = {name: settings["parts"] for name, settings in settings_by_name.items()}
    parameters = split_parameters(task, parts, takes_turns=bool(config["update_order"]))
    optimizers: dict[str, Optimizer] = {}
    clippings: dict[str, kernels.Clipping] = {}
    for name, settings in settings_by_name.items():
        with prefix_error_keys(scheduled_fields.config_prefix(name), settings):
            with_batch_size = {**settings, "global_batch_size": config["global_batch_size"]}
            optimizers[name] = _make_optimizer(
                with_batch_size, task, parameters[name], compilation.compiles_steps
            )
            head = list(parameters[name].values())[-2:] if settings["agc"] is not None else []
            limits = settings["max_grad_norm"], settings["max_grad_value"], settings["agc"]
            clippings[name] = kernels.Clipping(*limits, frozenset(map(id, head)))
    fields = scheduled_fields.FieldSchedules(optimizers, schedules)
    entries: dict[str, OptimizerEntry] = {}
    for name, optimizer in optimizers.items():
        step, losses = make_step(optimizer, fields.of(name)), settings_by_name[name]["losses"]
        entries[name] = OptimizerEntry(optimizer, step, clippings[name], losses)
    order: Sequence[Sequence[str]] = config["update_order"]
    if order and (not all(order) or {name for names in order for name in names} != entries.keys()):
        needs = f"lists in which each of {', '.join(entries)} has a turn"
        raise ConfigError("update_order", needs=needs, got=order)
    return Optimizers(entries, fields, precision, skip_non_finite=config["skip_non_finite"], order=order)


def check_losses(config: Mapping[str, Any], outcome: Outcome) -> None:
    """Check that the task returns every loss that an optimizer follows, and that every loss is followed.

    Raises:
        ConfigError: a loss is unknown, listed twice or not followed.
    """
    losses_by_name = {name: settings["losses"] for name, settings in named_settings(config).items()}
    for name, losses in losses_by_name.items():
        key = f"optimizers.{name}.losses"
        for loss in (losses or ()) if outcome.losses else ():  # else it has some in training alone
            check_known(key, "loss", loss, outcome.losses)
        if losses is not None and len(set(losses)) != max(len(losses), 1):
            raise ConfigError(key, needs="at least one loss, each once, or null", got=losses)
    if None in losses_by_name.values():
        return
    for loss in outcome.losses:
        if not any(loss in losses for losses in losses_by_name.values()):
            key = f"optimizers.{next(iter(losses_by_name))}.losses"
            raise ConfigError(key, f"no optimizer follows {loss}", remedy="add it to the losses of one")


def _make_optimizer(
    settings: Mapping[str, Any], task: Any, parameters: Mapping[str, nn.Parameter], is_compiled: bool
) -> Optimizer:
    node = dict(settings["optimizer"]) | _scaled_lr(settings)
    by_group = settings["param_groups"]
    groups = param_groups(task.model, parameters, node.get("lr"), mup=settings["mup"], **by_group)
    _check_patterns(node, by_group["patterns"])
    with as_config_error("optimizer", settings["optimizer"]):
        factory = instantiate_node(node)
        build = factory if is_compiled else kernels.with_fastest_kernel(factory, sparse_parameters(task))
        optimizer: Optimizer = build(groups)
        check_fields(groups, optimizer.defaults, type(optimizer).__name__)
    return optimizer


def _scaled_lr(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the lr for this batch size, scaled from `lr_base_size` by `lr_scaling` (Goyal et al., 2017; timm).

    Without `lr_scaling` the result is empty.

    Raises:
        ConfigError: the optimizer has no lr, or the batch size changes.
    """
    rule, batch_size = config["lr_scaling"], config["global_batch_size"]
    if rule is None:
        return {}
    if not isinstance(batch_size, int):
        message = f"scales to one number of samples, not to global_batch_size={batch_size}"
        raise ConfigError("lr_scaling", message, remedy="give a number, or schedule the lr")
    ratio = batch_size / config["lr_base_size"]
    if "lr" not in config["optimizer"]:
        raise ConfigError("lr_scaling", "this optimizer has no lr to scale", remedy="leave lr_scaling out")
    return {"lr": config["optimizer"]["lr"] * (ratio if rule == "linear" else ratio**0.5)}


def _check_patterns(node: Mapping[str, Any], patterns: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the fields of each pattern by building the optimizer with them, because torch checks only its arguments."""
    accepted = inspect.signature(instantiate_node(node).func).parameters.keys() if patterns else ()
    for title, rule in patterns.items():
        key = f"param_groups.patterns.{title}"
        changed = dict(node) | {field: value for field, value in rule.items() if field in accepted}
        check_arguments(key, changed)
        with as_config_error(key, changed):
            instantiate_node(changed)([torch.nn.Parameter(torch.zeros(2, 2))])


def _scheduled(settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every scheduled field with the config of its scheduler. A field of one group is written `head/lr`."""
    yield "lr", settings["scheduler"]
    yield from _dotted_fields(settings["schedules"])
    for title, rule in settings["param_groups"]["patterns"].items():
        for field, node in _dotted_fields(rule.get("schedules") or {}):
            yield f"{title}/{field}", node


def _dotted_fields(schedules: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (`weight_decay` or `betas.0`, config of its scheduler); the config nests dotted fields."""
    for name, node in schedules.items():
        if "_target_" in node:
            yield f"{prefix}{name}", node
        else:
            yield from _dotted_fields(node, f"{prefix}{name}.")


_MAX_SIDE = 4
"""The largest size of a dimension in the stand-ins of weights."""


def check_steps(
    config: Mapping[str, Any], task: nn.Module, optimizers: Optimizers, device: torch.device
) -> None:
    """Try to clip and to make a step with each optimizer, then save its state, restore it into another one, and try its
    step.

    The trial runs on the host, so that a full or busy GPU does not count as a fault of the optimizer. An optimizer that
    fails there may need the device of the run, and is tried on it.

    Raises:
        ConfigError: an optimizer or a limit of gradients fails, or an optimizer treats complex weights wrongly.
    """
    sparse, host = sparse_parameters(task), torch.device("cpu")
    for name, entry in optimizers.entries.items():
        prefix, kind = scheduled_fields.config_prefix(name), type(entry.optimizer).__name__
        make_optimizer = instantiate_node(named_settings(config)[name]["optimizer"])
        try_on = partial(_failure, make_optimizer, entry, sparse, optimizers.scales_loss)
        failure = try_on(host)
        if failure is not None and device != host:
            failure = try_on(device)
        if failure is not None:
            key, error = failure
            reason = first_line(error) or type(error).__name__
            does, remedy = {
                "optimizer": (f"{kind} cannot train", "choose another optimizer"),
                "precision": ("the loss scaler cannot scale the gradients of", "use precision=bf16 or fp32"),
            }.get(key, (f"{key} cannot clip the gradients of", "use max_grad_norm"))
            if "overflow" in reason:
                remedy = f"give smaller numbers, such as {prefix}optimizer.lr"
            path = key if key == "precision" else f"{prefix}{key}"
            raise ConfigError(path, f"{does} this model: {reason}", remedy=remedy) from error


def step_once(optimizer: Optimizer) -> None:
    """Make a step, in the mode and with the closure that the optimizer needs. The closure returns 1."""
    if kernels.has_modes(optimizer):
        optimizer.train()
    closure = [lambda: torch.ones(())] if kernels.needs_closure(optimizer) else []
    optimizer.step(*closure)  # pyrefly: ignore[no-matching-overload]  # returns a tensor, as LBFGS needs


def _failure(
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer],
    entry: OptimizerEntry,
    sparse: Collection[int],
    scales_loss: bool,
    device: torch.device,
) -> tuple[str, Exception] | None:
    """Return the key and the error of the trial on a device, if any. An error of the device itself is raised."""
    cuda_devices, groups = [device] if device.type == "cuda" else [], entry.optimizer.param_groups
    clipping, key = entry.clipping, entry.clipping.key or "optimizer"
    # Kron compiles its step, which takes half a minute.
    eager, stand_ins = torch.compiler.set_stance("force_eager"), partial(_stand_ins, sparse)
    with torch.random.fork_rng(cuda_devices), torch.accelerator.device_index(device.index), eager:
        try:
            if clipped := stand_ins([p for p in entry.parameters if id(p) not in clipping.head], device):
                clipping(clipped, kernels.gradient_norm(clipped))
            key = "optimizer"
            first, second = (
                make_optimizer([{**group, "params": stand_ins(group["params"], device)} for group in groups])
                for _ in range(2)
            )
            if scales_loss:
                key, scaler = "precision", torch.amp.GradScaler(device.type)
                scaler.scale(torch.ones((), device=device))  # makes its scale
                scaler.unscale_(first)
                key = "optimizer"
            step_once(first)
            tensors: dict[str, Tensor] = {}
            second.load_state_dict(join(split(first.state_dict(), tensors), tensors))
            step_once(second)
            for group in groups:
                for weight in stand_ins([p for p in group["params"] if p.is_complex()], device):
                    _check_complex(lambda p, group=group: make_optimizer([{**group, "params": [p]}]), weight)
        except Exception as error:  # an optimizer raises anything
            if is_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            return key, error
    return None


def _stand_ins(
    sparse: Collection[int], parameters: Sequence[nn.Parameter], device: torch.device
) -> list[nn.Parameter]:
    """Return a small weight with a gradient for each kind of weight. `sparse`: the `id`s of those with sparse ones."""
    kinds = dict.fromkeys(
        (tuple(min(side, _MAX_SIDE) for side in p.shape), p.dtype, id(p) in sparse) for p in parameters
    )
    stand_ins: list[nn.Parameter] = []
    for shape, dtype, is_sparse in kinds:
        stand_in = nn.Parameter(torch.ones(shape, dtype=dtype, device=device))
        gradient = torch.ones_like(stand_in)
        stand_in.grad = gradient.to_sparse(1) if is_sparse else gradient
        stand_ins.append(stand_in)
    return stand_ins


def _check_complex(make_optimizer: Callable[[nn.Parameter], Optimizer], like: Tensor) -> None:
    """Check that an optimizer moves a complex weight as a pair of real numbers, or alike in every phase.

    Raises:
        ValueError: it does neither, as if a square of a complex number were positive.
    """
    torch.manual_seed(0)
    weight, *gradients = torch.randn(4, *like.shape, dtype=like.dtype, device=like.device)

    def moved(convert: Callable[[Tensor], Tensor]) -> Tensor:
        parameter = nn.Parameter(convert(weight).clone())
        optimizer = make_optimizer(parameter)
        for gradient in gradients:
            parameter.grad = convert(gradient).clone()
            step_once(optimizer)
        return parameter.detach()

    def pairs(values: Tensor) -> Tensor:  # with as many dimensions, by which optimizers choose their rule
        return as_real(values).flatten(-2 if values.ndim else 0)

    result, turn = moved(lambda values: values), 0.6 + 0.8j
    differences = moved(lambda values: values * turn) / turn - result, moved(pairs) - pairs(result)
    if min(float(d.abs().max()) for d in differences) > 0.01 * float((result - weight).abs().max()):
        raise ValueError("it moves complex weights otherwise than pairs of real numbers")
