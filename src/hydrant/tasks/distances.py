"""How far a student is from its teacher: in its logits, or in what its layers give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.errors import ConfigError, unknown_name

_KEY = "task.layers"


class LogitDistance(nn.Module):
    """Of the logits.

    Args:
        temperature: None is the mean squared difference; else that of the Kullback-Leibler divergence.
    """

    def __init__(self, temperature: float | None) -> None:
        super().__init__()
        self._temperature = temperature

    def watch(self, student: nn.Module) -> None: ...

    def watch_teacher(self, teacher: nn.Module) -> None: ...

    def forward(self, student: nn.Module, teacher: nn.Module, logits: Tensor, taught: Tensor) -> Tensor:
        """logits, taught (B, num_classes) -> shape ()."""
        if self._temperature is None:
            return F.mse_loss(logits, taught)
        own, other = ((x / self._temperature).log_softmax(dim=1) for x in (logits, taught))
        return F.kl_div(own, other, reduction="batchmean", log_target=True) * self._temperature**2


class FeatureDistance(nn.Module):
    """The mean squared difference of what two layers give, the mean over pairs of them; Romero et al., "FitNets", 2015.

    Where the student's has another width, a learned linear map, without bias, takes its features to the teacher's.

    Args:
        student, teacher: the models; their weights are none of this module's.
        layers: pairs: the name of a layer of the student, that of the layer of the teacher it is to be like.
        input_shape: of one sample.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        layers: Sequence[tuple[str, str]],
        input_shape: Sequence[int],
    ) -> None:
        super().__init__()
        if not layers:
            raise ConfigError(_KEY, "needs pairs of layers, such as task.layers=[[blocks.5,blocks.11]]")
        self._students, self._teachers = ([pair[n] for pair in layers] for n in (0, 1))
        shapes = [
            _shapes(model, names, whose, input_shape)
            for model, names, whose in (
                (student, self._students, "student"),
                (teacher, self._teachers, "teacher"),
            )
        ]
        self._dims = [_differing(*pair) for pair in zip(layers, *shapes, strict=True)]
        self.projections = nn.ModuleList(
            nn.Identity() if dim is None else nn.Linear(own[dim], taught[dim], bias=False)
            for dim, own, taught in zip(self._dims, *shapes, strict=True)
        )

    def watch(self, student: nn.Module) -> None:
        """The coming forward pass of a student keeps what `forward` takes."""
        _watch(student, self._students)

    def watch_teacher(self, teacher: nn.Module) -> None:
        """The same of a teacher."""
        _watch(teacher, self._teachers)

    def forward(self, student: nn.Module, teacher: nn.Module, logits: Tensor, taught: Tensor) -> Tensor:
        """Of the forward passes that were watched, shape ()."""
        del logits, taught
        distances: list[Tensor] = []
        pairs = zip(_take(student, self._students), _take(teacher, self._teachers), strict=True)
        for dim, projection, (own, other) in zip(self._dims, self.projections, pairs, strict=True):
            mapped = own if dim is None else projection(own.movedim(dim, -1)).movedim(-1, dim)
            distances.append(F.mse_loss(mapped.float(), other.float()))
        return torch.stack(distances).mean()


def _keep(module: Any, args: Any, output: Tensor) -> None:
    """A hook. It belongs to no object, so that a copy of a model has it and nothing else."""
    if module.is_watched:
        module.kept = output


def _watch(model: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        layer: Any = model.get_submodule(name)
        layer.is_watched = True


def _take(model: nn.Module, names: Sequence[str]) -> list[Tensor]:
    layers: list[Any] = [model.get_submodule(name) for name in names]
    taken: list[Tensor] = [layer.kept for layer in layers]
    for layer in set(layers):
        layer.is_watched = False
        del layer.kept  # a model with it could not be copied
    return taken


def _shapes(
    model: nn.Module, names: Sequence[str], whose: str, input_shape: Sequence[int]
) -> list[torch.Size]:
    """Hook the layers; the shape of what each gives of one sample."""
    known = dict(model.named_modules())
    for name in dict.fromkeys(names):  # a layer may be in several pairs
        if name not in known or not name:
            raise unknown_name(_KEY, f"layer of the {whose}", name, filter(None, known))
        known[name].is_watched = False  # type: ignore[assignment]
        known[name].register_forward_hook(_keep)
    _watch(model, names)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, *input_shape))
    model.train(was_training)
    for name in names:
        kept: Any = getattr(known[name], "kept", None)
        if not isinstance(kept, Tensor):
            given = "nothing; it is not called" if kept is None else f"a {type(kept).__name__}, not a tensor"
            raise ConfigError(_KEY, f"the {whose}'s {name} gives {given}; choose another layer")
    return [features.shape for features in _take(model, names)]


def _differing(names: tuple[str, str], own: torch.Size, taught: torch.Size) -> int | None:
    """The dimension that a projection is needed for; None where there is none."""
    apart = [dim for dim, (a, b) in enumerate(zip(own, taught, strict=False)) if a != b]
    if len(own) != len(taught) or len(apart) > 1:
        told = f"{names[0]} gives {list(own[1:])} of a sample, the teacher's {names[1]} {list(taught[1:])}; "
        raise ConfigError(_KEY, told + "choose layers that differ in their width alone")
    return apart[0] if apart else None
