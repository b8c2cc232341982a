"""The step of an optimizer, compiled so that scheduled hyperparameters cause no recompilation.

Each group has its own 0-dim float64 tensor for the learning rate, which is written in place. With it every optimizer of
torch computes the same, bit for bit, as with a Python number. Its weight decay is a tensor too, so that all jobs of a
sweep share the compiled code. On CUDA these tensors, and the numbers in the optimizer's state, are on the device, so
that a CUDA graph can hold the whole step. Which optimizers compile once was found by experiment, which
tests/extensions/compile/test_compiled_step.py repeats; docs/internals/compiled-updates.md shows it as a table.
"""

import contextlib
import inspect
import itertools
import types
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch._dynamo import mark_static_address  # noqa: PLC2701  # has no public name
from torch._dynamo.utils import counters  # noqa: PLC2701  # the graphs of a step
from torch.optim import Optimizer

from hydrant.errors import log
from hydrant.optimizers.kernels import OptimizerStep
from hydrant.optimizers.scheduled_fields import get_field, set_field

BETAS = ("betas.0", "betas.1")
TENSOR_FIELDS = {
    "torch.optim.Adam": BETAS,
    "torch.optim.AdamW": BETAS,
    "torch.optim.NAdam": ("betas.0",),
    "torch.optim.RAdam": ("betas.0",),
    "torch.optim.Adamax": ("betas.0",),
    "torch.optim.Adadelta": ("rho",),
    "torch.optim.RMSprop": ("alpha",),
    "timm.optim.Adan": ("weight_decay", *BETAS),
    "timm.optim.Adopt": BETAS,
    "timm.optim.AdafactorBigVision": ("momentum",),
    "timm.optim.AdamWLegacy": ("weight_decay", *BETAS),
    "timm.optim.Lion": ("weight_decay", *BETAS),
    "timm.optim.Mars": ("weight_decay",),
    "timm.optim.Muon": ("weight_decay", "momentum", *BETAS),
    "timm.optim.NAdamW": ("weight_decay", *BETAS),
    "timm.optim.SGDW": ("weight_decay",),
}
"""Fields besides lr that may be tensors."""

SHRINKS_WEIGHTS = {
    "torch.optim.AdamW": True,
    "timm.optim.AdaBelief": True,
    "timm.optim.AdafactorBigVision": True,
    "torch.optim.Adadelta": False,
    "torch.optim.Adagrad": False,
    "torch.optim.Adam": False,
    "torch.optim.Adamax": False,
    "torch.optim.ASGD": False,
    "torch.optim.NAdam": False,
    "torch.optim.RAdam": False,
    "torch.optim.RMSprop": False,
    "torch.optim.SGD": False,
    "timm.optim.Adopt": False,
    "timm.optim.MADGRAD": False,
    "timm.optim.RMSpropTF": False,
}
"""Optimizers that begin with their weight decay, so that CompiledWeightDecay can do it instead.

True: they shrink the weights. False: they add the decay to the gradients.
"""

_DECOUPLED_FIELDS = ("decoupled_weight_decay", "decoupled_decay", "decoupled")
"""The field of a group that chooses between the two ways, in optimizers that have both."""

_OTHER_DECAY_FIELDS = ("corrected_weight_decay", "fixed_decay", "unscaled_wd")
"""Fields of a group that, if true, make its decay another product than lr times weight_decay."""

_ONLY_LR = ("torch.optim.Rprop", "timm.optim.Lamb", "timm.optim.LaProp", "timm.optim.Lars")
"""Other optimizers that compile once, if only their lr is scheduled."""

COMPILED = frozenset((*TENSOR_FIELDS, *SHRINKS_WEIGHTS, *_ONLY_LR))
"""Optimizers that compile once. All others stay eager."""


def why_eager(optimizer: Optimizer, scheduled: Collection[str], *, as_tensors: bool = True) -> str | None:
    """Return why the step cannot be compiled, or would be recompiled again and again; None if it compiles once.

    `as_tensors`: scheduled fields become tensors. Without it, recompilations are accepted.
    """
    name = optimizer_name(optimizer)
    if name not in COMPILED and not hasattr(optimizer, "compiled_fields"):
        return "it is not known whether it compiles once"
    for field in ("fused", "foreach"):  # one kernel already; it takes lr as a number
        if any(group.get(field) for group in optimizer.param_groups) and (as_tensors or field == "fused"):
            return f"torch's own kernel makes it (optimizer.{field}=true)"
    decays = all(shrinks_weights(optimizer, group) is not None for group in optimizer.param_groups)
    supported = {"lr", *_may_be_tensors(optimizer), *(["weight_decay"] if decays else [])}
    unsupported = [field for field in scheduled if field not in supported]
    if unsupported and as_tensors:
        return f"it reads {unsupported[0]} as a number, and each value would be compiled again"
    return None


def shrinks_weights(optimizer: Optimizer, group: Mapping[str, Any]) -> bool | None:
    """Return True if the step of a group begins by shrinking the weights, False if by adding decay to the gradients.

    None: the step applies weight decay elsewhere or in another way.
    """
    default = SHRINKS_WEIGHTS.get(
        optimizer_name(optimizer), True if hasattr(optimizer, "compiled_fields") else None
    )
    if default is None or any(group.get(field) for field in _OTHER_DECAY_FIELDS):
        return None
    return next((bool(group[field]) for field in _DECOUPLED_FIELDS if field in group), default)


def _may_be_tensors(optimizer: Optimizer) -> Sequence[str]:
    """Return the fields besides lr that may be tensors; `compiled_fields` of an optimizer that begins as AdamW does."""
    return getattr(optimizer, "compiled_fields", TENSOR_FIELDS.get(optimizer_name(optimizer), ()))


def optimizer_name(optimizer: Optimizer) -> str:
    """Return the public name of an optimizer's class, such as `torch.optim.AdamW`."""
    kind = type(optimizer)
    return f"{'.'.join(kind.__module__.split('.')[:2])}.{kind.__name__}"


@dataclass(frozen=True)
class _DecayedGroup:
    """A parameter group with weight decay."""

    group_idx: int
    weights: list[Tensor]
    shrinks_weights: bool
    factor: Tensor
    """0-dim, float64, on the device. The weights are multiplied by it, or the product is added to the gradients."""


class CompiledWeightDecay:
    """Applies the weight decay instead of an optimizer whose step would begin with it.

    A group whose weight decay is 0 and not scheduled adds nothing to the graph.
    """

    def __init__(
        self, optimizer: Optimizer, groups: Sequence[Mapping[str, Any]], *, is_scheduled: bool
    ) -> None:
        self._optimizer = optimizer
        self._decayed: list[_DecayedGroup] = []
        for group_idx, group in enumerate(groups):
            shrinks = shrinks_weights(optimizer, group)
            if shrinks is not None and (is_scheduled or group["weight_decay"] != 0):
                # Collected here and not while Dynamo traces, because it handles param_groups in a special way.
                weights = list(group["params"])
                factor = torch.zeros((), dtype=torch.float64, device=weights[0].device)
                self._decayed.append(_DecayedGroup(group_idx, weights, shrinks, factor))

    @contextlib.contextmanager
    def replace_optimizer_decay(self) -> Generator[None]:
        """Copy the weight decay of the groups to the factors of `apply`, and set it to 0 in this context.

        The learning rate is a tensor and the weight decay a number, so nothing is read from the device.
        """
        groups = [self._optimizer.param_groups[decayed.group_idx] for decayed in self._decayed]
        values = [group["weight_decay"] for group in groups]
        for decayed, group, decay in zip(self._decayed, groups, values, strict=True):
            if decayed.shrinks_weights:
                decayed.factor.copy_(1 - group["lr"] * decay)
            else:  # with maximize the optimizer negates the gradients afterwards
                decayed.factor.fill_(-decay if group.get("maximize") else decay)
            group["weight_decay"] = 0.0
        try:
            yield
        finally:
            for group, decay in zip(groups, values, strict=True):
                group["weight_decay"] = decay

    def apply(self) -> None:
        """Shrink the weights, or add the decay to the gradients. Runs inside the compiled step."""
        for decayed in self._decayed:
            weights = [p for p in decayed.weights if p.grad is not None]
            gradients = [p.grad for p in weights if p.grad is not None]
            if not weights:
                continue
            if decayed.shrinks_weights:
                torch._foreach_mul_(weights, decayed.factor)
            else:
                decay = torch._foreach_mul(weights, decayed.factor)
                torch._foreach_add_(gradients, decay)


Hyperparameters = Literal["tensors", "numbers"]

NUM_WARMUP_CALLS = 3
"""Calls that may compile. A step that compiles later would do so again and again, and becomes eager."""

_HOST_NUMBERS = frozenset(("step", "mu_product"))
"""The state that an eager optimizer of torch reads as a number. On the device, each update would wait for it."""


def compile_step(
    optimizer: Optimizer,
    scheduled: Collection[str],
    arguments: Mapping[str, Any],
    hyperparameters: Hyperparameters = "tensors",
) -> OptimizerStep:
    """Return the compiled step of an optimizer, or log why it stays eager and return the eager one.

    Args:
        optimizer: with `tensors`, fields of its groups become tensors unless the step stays eager.
        scheduled: the fields of its groups that change from update to update, such as `lr` or `betas.0`.
        arguments: the arguments of torch.compile.
        hyperparameters: whether scheduled fields are `tensors` or `numbers` in the compiled code.
    """
    as_tensors = hyperparameters == "tensors"
    obstacle = why_eager(optimizer, scheduled, as_tensors=as_tensors)
    if obstacle is not None:
        log.warning("the step of %s stays eager: %s", type(optimizer).__name__, obstacle)
        return OptimizerStep(optimizer)
    log.info("the step of %s is compiled", type(optimizer).__name__)
    return CompiledStep(optimizer, scheduled, arguments, as_tensors=as_tensors)


class CompiledStep(OptimizerStep):
    """Runs the step of an optimizer as one compiled graph.

    The first step of a run is eager and takes numbers, because it creates the optimizer's state. With tensors, if a
    step is recompiled after `NUM_WARMUP_CALLS` calls (because some gradients come and go, for example), the rest of the
    run is eager and a warning is logged.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduled: Collection[str],
        arguments: Mapping[str, Any],
        *,
        as_tensors: bool,
    ) -> None:
        super().__init__(optimizer)
        self._name = type(optimizer).__name__
        self._as_tensors = as_tensors
        self._tensor_fields = _tensor_fields(optimizer, scheduled) if as_tensors else []
        groups = optimizer.param_groups if as_tensors else []
        self._decay = CompiledWeightDecay(optimizer, groups, is_scheduled="weight_decay" in scheduled)
        self._compiled = torch.compile(_unwrapped_step(optimizer, self._decay), **arguments)
        self._num_calls = 0
        self._is_compiled = True
        self._is_first = True  # no step was taken or loaded yet
        self._host_numbers = set(_HOST_NUMBERS)  # names in states and groups
        self._is_state_placed = False

    @property
    def is_warming_up(self) -> bool:
        """Whether the next calls may compile as planned."""
        return self._as_tensors and self._num_calls <= NUM_WARMUP_CALLS

    def __call__(self) -> None:
        if not self._is_compiled:
            super().__call__()
            return
        is_first, self._is_first = self._is_first, False
        # Plain SGD has none.
        has_state = any(group.get("momentum", 1) for group in self._optimizer.param_groups)
        if is_first or (not self._optimizer.state and has_state):
            super().__call__()
        else:
            self._use_tensors()
            self._place_state()
            self._call_compiled()

    def disable(self) -> None:
        """Run eager from now on."""
        self._is_compiled = False
        self._use_numbers()

    def state_dict(self) -> dict[str, Any]:
        return {"is_compiled": self._is_compiled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._is_first = self._is_state_placed = False
        if state["is_compiled"]:
            self._is_compiled = True
        else:
            self.disable()

    def _call_compiled(self) -> None:
        self._num_calls += 1
        num_graphs = counters["stats"]["unique_graphs"]
        with torch.no_grad(), self._decay.replace_optimizer_decay():
            self._compiled()
        has_compiled = counters["stats"]["unique_graphs"] > num_graphs
        if has_compiled and self._as_tensors and not self.is_warming_up:
            self.disable()
            message = "the step of %s was recompiled in its call %d and is eager from now on"
            log.warning(message, self._name, self._num_calls)

    def _use_tensors(self) -> None:
        """Give each group its own tensors: groups may share an inherited value, and a loaded state has others."""
        seen: set[int] = set()
        for group, field in self._group_fields():
            value, device = get_field(group, field), _device(group)
            fits = isinstance(value, Tensor) and value.device == device and value.dtype == torch.float64
            if not fits or id(value) in seen:
                value = torch.tensor(float(value), dtype=torch.float64, device=device)
                set_field(group, field, value)
            seen.add(id(value))

    def _place_state(self) -> None:
        """Move the numbers that an eager step keeps on the host, and declare that the state keeps its addresses.

        A CUDA graph takes no tensors on the host, and changes only tensors whose address is known.
        """
        if self._is_state_placed:
            return
        for group, states in self._states():
            device = _device(group)
            for owner in (group, *states):
                moved = {k: v for k, v in owner.items() if _is_number(v) and v.device != device}
                self._host_numbers |= moved.keys()
                owner |= {name: value.to(device) for name, value in moved.items()}
                for value in owner.values():
                    if isinstance(value, Tensor) and value.device.type == "cuda":
                        mark_static_address(value, guard=False)
        self._is_state_placed = True

    def _use_numbers(self) -> None:
        """Undo what the compiled step needed: tensors as fields, and numbers of the state on the device."""
        for group, field in self._group_fields():
            set_field(group, field, float(get_field(group, field)))
        for group, states in self._states():
            on_device = group.get("capturable", False)
            for owner in (group, *states):
                numbers = {k: v for k, v in owner.items() if k in self._host_numbers and _is_number(v)}
                owner |= {} if on_device else {name: value.cpu() for name, value in numbers.items()}
        self._is_state_placed = False

    def _states(self) -> Generator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield every group with the states of its parameters."""
        for group in self._optimizer.param_groups:
            yield group, [state for p in group["params"] if (state := self._optimizer.state.get(p))]

    def _group_fields(self) -> Generator[tuple[dict[str, Any], str]]:
        for group in self._optimizer.param_groups:
            for field in self._tensor_fields:
                if field.partition(".")[0] in group:
                    yield group, field


def _tensor_fields(optimizer: Optimizer, scheduled: Collection[str]) -> list[str]:
    """Return the fields that become tensors: the scheduled ones, and those that a sweep usually varies."""
    supported = set(_may_be_tensors(optimizer))
    fields = {"lr"} | supported & {"weight_decay", *scheduled}
    if supported >= set(BETAS) and not fields.isdisjoint(BETAS):
        fields |= set(BETAS)  # these optimizers need both betas as tensors, or none
    return sorted(fields)


def _unwrapped_step(optimizer: Optimizer, decay: CompiledWeightDecay) -> Callable[[], None]:
    """Return the step without torch's wrappers, which would break the graph.

    Each optimizer gets its own code object, because Dynamo limits the number of graphs per code object.
    """
    step: Any = inspect.unwrap(type(optimizer).step)

    def call() -> None:
        decay.apply()
        step(optimizer)

    code = call.__code__.replace(co_name=f"step_{type(optimizer).__name__}_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


_numbers = itertools.count()


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _device(group: Mapping[str, Any]) -> torch.device:
    return group["params"][0].device
