"""Number formats of the forward and backward pass, with the loss scaler that fp16 needs.

fp32 uses the same class without autocast and with a disabled scaler.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from hydrant.batch import Batch, in_dtype, map_tensors, widened
from hydrant.errors import ConfigError
from hydrant.files.plain_values import AboveOne, BetweenZeroAndOne, Positive, PositiveInt
from hydrant.installation import require_extra

_AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_PARAMETERS = {"float32": None, "bfloat16": torch.bfloat16, "float64": torch.float64}
_NO_AUTOCAST = nullcontext()
_SCALER_STATE = ("scale", "_growth_tracker")

T = TypeVar("T")


class Precision:
    """Autocast of the forward pass, loss scaling of the backward pass, and the mode of float32 matmuls.

    Args:
        device: device of the run.
        autocast: dtype of torch.autocast: `bfloat16`, `float16` or None.
        scale_loss: True: multiply the loss so that small float16 gradients do not underflow (torch.amp.GradScaler).
        matmul: float32 products: `highest` in float32, `high` in TensorFloat-32.
        parameters: dtype of weights, buffers and optimizer state: `float32`, `bfloat16` or `float64`.
        fp8: float8 recipe of torchao for linear layers: `tensorwise`, `rowwise` or None.
        emulate: True: emulate float8 on any device; slow, for trying it out.
        init_scale: first loss scale.
        growth_factor: the loss scale grows by this factor after `growth_interval` updates without overflow. More than
            1.
        backoff_factor: the loss scale shrinks by this factor after an overflow. Between 0 and 1.
        growth_interval: updates without overflow before the loss scale grows.

    Raises:
        ConfigError: an argument is out of its range, two exclude each other, or the device lacks the format.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        autocast: Literal["bfloat16", "float16"] | None,
        scale_loss: bool,
        matmul: Literal["highest", "high"],
        parameters: Literal["float32", "bfloat16", "float64"],
        fp8: Literal["tensorwise", "rowwise"] | None,
        emulate: bool,
        init_scale: Positive,
        growth_factor: AboveOne,
        backoff_factor: BetweenZeroAndOne,
        growth_interval: PositiveInt,
    ) -> None:
        self.uses_bf16 = uses_bf16 = autocast == "bfloat16" or parameters == "bfloat16"
        uses_fp8 = fp8 is not None and not emulate
        _require_support(device, uses_bf16=uses_bf16, uses_tf32=matmul == "high", uses_fp8=uses_fp8)
        self._parameters = _PARAMETERS[parameters]
        self._fp8 = fp8
        self._emulate = emulate
        self._device_type = device.type
        self.autocast_dtype = None if autocast is None else _AUTOCAST[autocast]
        """The dtype of matrix products; None means the dtype of the parameters."""
        self._matmul = matmul
        self.scales_loss = scale_loss
        self.scaler = torch.amp.GradScaler(
            device.type, init_scale, growth_factor, backoff_factor, growth_interval, enabled=scale_loss
        )

    @property
    def tolerance(self) -> float:
        """How far gradients may differ, relative to their norm, if only the order of the operations differs."""
        if self._fp8 is not None:
            return 0.3
        if self._parameters is torch.float64:
            return 1e-9
        if self.is_reduced:
            return 0.05
        return 1e-3 if self._matmul == "highest" else 0.01

    @property
    def is_reduced(self) -> bool:
        """Whether matrix products and convolutions are computed in fewer than 32 bits."""
        return self.autocast_dtype is not None or self._parameters is torch.bfloat16 or self._fp8 is not None

    @property
    def loss_dtype(self) -> torch.dtype:
        """The dtype of losses, and of the doubles of the data."""
        return torch.float64 if self._parameters is torch.float64 else torch.float32

    def check_fits(self, task: nn.Module) -> None:
        """Raise ConfigError if float8 is configured and the task has no layer for it."""
        if self._fp8 is None:
            return
        require_extra("fp8", ["torchao"], "precision", "fp8")
        if not any(_fits_fp8(module, name) for name, module in task.named_modules()):
            message = "fp8 needs linear layers whose sizes are multiples of 16, and this model has none"
            raise ConfigError("precision", message, remedy="use precision=bf16")

    def prepare(self, task: nn.Module) -> nn.Module:
        """Convert the task in place to the dtype of its parameters, before it is tried on the host."""
        dtype = self._parameters
        return task if dtype is None else task._apply(partial(in_dtype, dtype=dtype))  # pyrefly: ignore[protected-access]  # it has no public name

    def convert_layers(self, task: nn.Module) -> nn.Module:
        """Convert the linear layers in place to float8 if configured, before the task moves to its device."""
        if self._fp8 is not None:
            _convert_to_fp8(task, self._fp8, self._emulate)
        return task

    def activate(self) -> None:
        """Set the process-wide float32 matmul mode; convolutions follow it."""
        torch.set_float32_matmul_precision(self._matmul)
        torch.backends.cudnn.allow_tf32 = self._matmul != "highest"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        dtype = self.autocast_dtype
        return _NO_AUTOCAST if dtype is None else torch.autocast(self._device_type, dtype=dtype)

    def cast(self, batch: Batch) -> Batch:
        """Return the batch with floating-point inputs in the dtype of the parameters; targets only become wider."""
        dtype = self._parameters
        if dtype is None:
            return batch
        cast = partial(map_tensors, partial(in_dtype, dtype=dtype))
        return Batch(cast(batch.inputs), batch.targets if self.is_reduced else cast(batch.targets))

    def around(self, forward: Callable[[Any, Batch], T]) -> Callable[[Any, Batch], T]:
        """Return a forward pass in these formats: the same function if they change nothing."""
        is_plain = self.autocast_dtype is None and self._parameters is None
        if type(self) is Precision and is_plain:  # a subclass may cast to any format
            return forward

        def cast_forward(task: Any, batch: Batch) -> T:
            with self.autocast():
                return forward(task, self.cast(batch))

        return cast_forward

    def backward(
        self, loss: Tensor, weight: Tensor, inputs: Sequence[Tensor] | None, *, retain_graph: bool
    ) -> None:
        """Add the scaled gradients of `weight * loss` (one number each) to those of `inputs` (None: all leaves)."""
        gradient = weight.expand_as(loss) if loss.ndim else weight
        scaled = self.scaler.scale(loss) if self.scales_loss else loss
        scaled.backward(gradient.to(loss.dtype), retain_graph=retain_graph, inputs=inputs)

    def gradients(self, loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of a loss, shape (), by inputs: scaled while they are computed, and None without one."""
        scale = self.scaler.scale(torch.ones_like(loss))
        scaled: Any = torch.autograd.grad(loss, inputs, scale, retain_graph=True, allow_unused=True)
        return [None if gradient is None else widened(gradient) / scale for gradient in scaled]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the loss scale. Call it once per update, before clipping."""
        self.scaler.unscale_(optimizer)

    def step(self, steps: Mapping[torch.optim.Optimizer, Callable[[], Any]]) -> bool:
        """Call the step of every optimizer and return True, or call none and return False if any gradient overflowed.

        With a loss scaler this synchronizes once. `GradScaler.step` would synchronize for each optimizer, and it does
        not return whether the step was skipped.
        """
        has_overflowed = False
        if self.scales_loss:
            per_optimizer = [self.scaler._found_inf_per_device(o) for o in steps]  # pyrefly: ignore[protected-access]  # it has no public name
            flags = [flag for per_device in per_optimizer for flag in per_device.values()]
            has_overflowed = bool(torch.stack(flags).any())
        if not has_overflowed:
            for step in steps.values():
                step()
        if self.scales_loss:
            self.scaler.update()
        return not has_overflowed

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale. The factors by which it changes are those of the config."""
        if state:
            self.scaler.load_state_dict(self.scaler.state_dict() | {key: state[key] for key in _SCALER_STATE})


def _require_support(device: torch.device, *, uses_bf16: bool, uses_tf32: bool, uses_fp8: bool) -> None:
    """Raise ConfigError for a format that the device does not support; the message names one that works."""
    is_cuda, message, remedy = device.type == "cuda", "", ""

    def supports(*capability: int) -> bool:
        return is_cuda and torch.cuda.get_device_capability(device) >= capability

    if uses_tf32 and not supports(8, 0):
        message, remedy = f"tf32 needs CUDA with compute capability 8.0 or more; this is {device}", "fp32"
    elif uses_bf16 and is_cuda and not supports(8, 0):
        message, remedy = f"bf16 needs compute capability 8.0 or more ({device})", "fp16"
    elif uses_fp8 and not supports(8, 9):
        message = f"fp8 needs CUDA with compute capability 8.9 or more; this is {device}"
        remedy = "bf16, or try it out slowly with precision.emulate=true"
    if message:
        raise ConfigError("precision", message, remedy=f"Use precision={remedy}")


def _convert_to_fp8(task: nn.Module, recipe: str, emulate: bool) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.float8.float8_linear import Float8Linear

    # Padding allows micro-batches of any size.
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(task, module_filter_fn=_fits_fp8, config=config)
    for module in task.modules():
        if isinstance(module, Float8Linear):
            module.register_forward_pre_hook(_cast_like_autocast)


def _cast_like_autocast(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Cast the input of a layer as autocast does. torchao 0.18 asks for the dtype of CUDA alone, so not on a CPU."""
    kind = inputs[0].device.type
    if not torch.is_autocast_enabled(kind):
        return inputs
    return (inputs[0].to(torch.get_autocast_dtype(kind)),)


def _fits_fp8(module: nn.Module, name: str) -> bool:
    """Return whether a module is a linear layer whose sizes are multiples of 16, as tensor cores need."""
    del name
    return isinstance(module, nn.Linear) and not (module.in_features % 16 or module.out_features % 16)


@contextmanager
def kept_settings() -> Generator[None]:
    """Restore the settings of kernels. For the precision of float32, torch has older and newer ones.

    A run sets the older ones, and these set the newer ones. Torch refuses to read an older setting that contradicts a
    newer one of the user; such a setting is left as it is.
    """
    backends: Any = torch.backends
    newer = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    settings = [(backends.cudnn, name) for name in ("benchmark", "deterministic", "allow_tf32")]
    settings += [(backend, "fp32_precision") for backend in newer]
    before, matmul, determinism = list[tuple[Any, str, Any]](), None, _determinism()
    with suppress(RuntimeError):
        matmul = torch.get_float32_matmul_precision()
    for backend, name in settings:
        with suppress(RuntimeError):
            before.append((backend, name, getattr(backend, name)))
    try:
        yield
    finally:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        for setting in before:
            setattr(*setting)
        if _determinism() != determinism:  # the setter imports Inductor
            enabled, warn_only = determinism
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


def _determinism() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
