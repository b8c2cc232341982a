"""Checks by trying, before anything starts: each optimizer makes steps on small stand-ins of the weights; its
state is saved and restored; a part of what a checkpoint holds is written and read back in memory.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import as_real
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, first_line
from hydrant.optimizers.clipping import gradient_norm
from hydrant.optimizers.kernels import has_modes, needs_closure
from hydrant.optimizers.param_groups import sparse_parameters
from hydrant.optimizers.scheduled_fields import config_prefix
from hydrant.training.checkpoint.storage import join, split
from hydrant.training.costs import is_out_of_memory
from hydrant.training.hooks import Hooks
from hydrant.training.prepare.build_optimizers import named_settings
from hydrant.training.update import OptimizerEntry, Optimizers

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
        prefix, kind = config_prefix(name), type(entry.optimizer).__name__
        make_optimizer = instantiate_node(named_settings(config)[name]["optimizer"])
        try_on = partial(_failure, make_optimizer, entry, partial(_stand_ins, sparse), optimizers.scales_loss)
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


def make_step(optimizer: Optimizer) -> None:
    """Make a step, in the mode and with the closure that the optimizer needs. The closure returns 1."""
    if has_modes(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
    closure = [lambda: torch.ones(())] if needs_closure(optimizer) else []
    optimizer.step(*closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS needs


_MakeOptimizer = Callable[[list[dict[str, Any]]], Optimizer]
_StandIns = Callable[[Sequence[nn.Parameter], torch.device], list[nn.Parameter]]


def _failure(
    make_optimizer: _MakeOptimizer,
    entry: OptimizerEntry,
    stand_ins: _StandIns,
    scales_loss: bool,
    device: torch.device,
) -> tuple[str, Exception] | None:
    """Return the key and the error of the trial on a device, if any. An error of the device itself is raised."""
    cuda_devices, groups = [device] if device.type == "cuda" else [], entry.optimizer.param_groups
    clipping, key = entry.clipping, entry.clipping.key or "optimizer"
    # Kron compiles its step, which takes half a minute.
    eager = torch.compiler.set_stance("force_eager")
    with torch.random.fork_rng(cuda_devices), torch.accelerator.device_index(device.index), eager:
        try:
            if clipped := stand_ins([p for p in entry.parameters if id(p) not in clipping.head], device):
                clipping(clipped, gradient_norm(clipped))
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
            make_step(first)
            tensors: dict[str, Tensor] = {}
            second.load_state_dict(join(split(first.state_dict(), tensors), tensors))
            make_step(second)
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
            make_step(optimizer)
        return parameter.detach()

    def pairs(values: Tensor) -> Tensor:  # with as many dimensions, by which optimizers choose their rule
        return as_real(values).flatten(-2 if values.ndim else 0)

    result, turn = moved(lambda values: values), 0.6 + 0.8j
    differences = moved(lambda values: values * turn) / turn - result, moved(pairs) - pairs(result)
    if min(float(d.abs().max()) for d in differences) > 0.01 * float((result - weight).abs().max()):
        raise ValueError("it moves complex weights otherwise than pairs of real numbers")


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
