"""Knowledge distillation: a student learns from the targets and from a teacher.

The distance of a student from its teacher: of the logits, or of the features of some layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.checks import unknown_name
from hydrant.errors import ConfigError
from hydrant.files.plain_values import Positive, Ratio
from hydrant.tasks.base import Task, are_correct, eval_mode
from hydrant.tasks.classification import class_predictions
from hydrant.tasks.losses import cross_entropy

_KEY = "task.layers"


class LogitDistance(nn.Module):
    """The Kullback-Leibler divergence or the mean squared difference of the logits.

    Args:
        temperature: temperature of the divergence; None selects the mean squared difference.
    """

    def __init__(self, temperature: float | None) -> None:
        super().__init__()
        self._temperature = temperature

    def capture_student(self, student: nn.Module) -> None: ...

    def capture_teacher(self, teacher: nn.Module) -> None: ...

    def forward(
        self, student: nn.Module, teacher: nn.Module, logits: Tensor, teacher_logits: Tensor
    ) -> Tensor:
        """Return the distance, shape (). Both logits are (B, num_classes)."""
        if self._temperature is None:
            return F.mse_loss(logits, teacher_logits)
        log_q, log_p = ((x / self._temperature).log_softmax(dim=1) for x in (logits, teacher_logits))
        return F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * self._temperature**2


class FeatureDistance(nn.Module):
    """The mean squared difference of the outputs of two layers, averaged over pairs; Romero et al., "FitNets", 2015.

    If the student's layer has another width, a learned linear map without bias projects its features.

    Args:
        student, teacher: the models. Their weights do not become part of this module.
        layers: pairs of names: a layer of the student, and the layer of the teacher to imitate.
        input_shape: shape of one sample.

    Raises:
        ConfigError: a layer is unknown, returns no tensor, or differs from its partner in more than the width.
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
            raise ConfigError(_KEY, needs="pairs of layers, such as task.layers=[[blocks.5,blocks.11]]")
        self._student_layers, self._teacher_layers = ([pair[n] for pair in layers] for n in (0, 1))
        student_shapes = _hook(student, self._student_layers, "student", input_shape)
        teacher_shapes = _hook(teacher, self._teacher_layers, "teacher", input_shape)
        self._dims = [_width_dim(*pair) for pair in zip(layers, student_shapes, teacher_shapes, strict=True)]
        self.projections = nn.ModuleList(
            nn.Identity() if dim is None else nn.Linear(source[dim], target[dim], bias=False)
            for dim, source, target in zip(self._dims, student_shapes, teacher_shapes, strict=True)
        )

    def capture_student(self, student: nn.Module) -> None:
        """Let the next forward pass of the student keep the features that `forward` compares."""
        _start_capture(student, self._student_layers)

    def capture_teacher(self, teacher: nn.Module) -> None:
        """Let the next forward pass of the teacher keep the features that `forward` compares."""
        _start_capture(teacher, self._teacher_layers)

    def forward(
        self, student: nn.Module, teacher: nn.Module, logits: Tensor, teacher_logits: Tensor
    ) -> Tensor:
        """Return the distance of the captured features, shape ()."""
        del logits, teacher_logits
        distances = list[Tensor]()
        features = _take_captured(student, self._student_layers)
        targets = _take_captured(teacher, self._teacher_layers)
        pairs = zip(self._dims, self.projections, features, targets, strict=True)
        for dim, projection, feature, target in pairs:
            mapped = feature if dim is None else projection(feature.movedim(dim, -1)).movedim(-1, dim)
            distances.append(F.mse_loss(widened(mapped), widened(target)))
        return torch.stack(distances).mean()


def _capture_hook(module: Any, args: Any, output: Tensor) -> None:
    """Keep the output of a layer. A method would not do: a copy of the model would keep calling it on the original."""
    if module.captures:
        module.captured = output


def _start_capture(model: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        layer: Any = model.get_submodule(name)
        layer.captures = True


def _take_captured(model: nn.Module, names: Sequence[str]) -> list[Tensor]:
    layers: list[Any] = [model.get_submodule(name) for name in names]
    features: list[Tensor] = [layer.captured for layer in layers]
    for layer in set(layers):
        layer.captures = False
        del layer.captured  # a tensor with a gradient function would make the model uncopyable
    return features


def _hook(model: nn.Module, names: Sequence[str], role: str, input_shape: Sequence[int]) -> list[torch.Size]:
    """Register the hooks, and return the shape of each layer's output for one sample."""
    modules = dict(model.named_modules())
    for name in dict.fromkeys(names):  # a layer may be in several pairs
        if name not in modules or not name:
            raise unknown_name(_KEY, f"layer of the {role}", name, filter(None, modules))
        modules[name].captures = False  # type: ignore[assignment]
        modules[name].register_forward_hook(_capture_hook)
    _start_capture(model, names)
    with eval_mode(model), torch.no_grad():
        model(torch.zeros(1, *input_shape))
    for name in names:
        output: Any = getattr(modules[name], "captured", None)
        if not isinstance(output, Tensor):
            kind = f"a {type(output).__name__}, not a tensor"
            result = "nothing; it is not called" if output is None else kind
            raise ConfigError(_KEY, f"the {role}'s {name} returns {result}", remedy="choose another layer")
    return [features.shape for features in _take_captured(model, names)]


def _width_dim(names: tuple[str, str], student: torch.Size, teacher: torch.Size) -> int | None:
    """Return the dimension to project; None if the shapes are equal."""
    differing = [dim for dim, (a, b) in enumerate(zip(student, teacher, strict=False)) if a != b]
    if len(student) != len(teacher) or len(differing) > 1:
        message = f"{names[0]} returns {list(student[1:])} for a sample, the teacher's {names[1]} {list(teacher[1:])}"
        raise ConfigError(_KEY, message, remedy="choose layers that differ only in their width")
    return differing[0] if differing else None


class Distillation(Task):
    """Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015. The teacher is frozen.

    The loss is `(1 - share) * cross_entropy + share * distillation`. Both parts are logged without their weights. A
    compiled task has both in its graph.

    Args:
        model: the student, `inputs (B, ...) -> logits (B, num_classes)`.
        teacher: the same; runs in evaluation mode without gradients.
        loss: `kl`: of the probabilities; `mse`: of the logits; `features`: mse of the outputs of `layers`. The first is
            the Kullback-Leibler divergence of the class probabilities at `temperature`, times `temperature ** 2`
            (section 2 of the paper); the others are mean squared differences (Ba & Caruana, 2014; Romero et al.,
            "FitNets", 2015).
        temperature: divisor of the logits for `kl`, above 0.
        share: weight of the distillation loss, 0..1.
        layers: for `features`: pairs of names, a layer of the student and the layer of the teacher to imitate.
        input_shape: shape of one sample.
        metrics: torchmetrics by name, for evaluation. They get the student's logits.

    Raises:
        ConfigError: an argument is out of its range, or does not fit `loss`.
    """

    best_metric: ClassVar[str] = "val/accuracy"

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: nn.Module,
        loss: Literal["kl", "mse", "features"],
        temperature: Positive,
        share: Ratio,
        layers: Sequence[tuple[str, str]],
        input_shape: Sequence[int],
        metrics: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(model, metrics)
        if layers and loss != "features":
            raise ConfigError(_KEY, f"task.loss={loss} uses no layers", remedy="use task.loss=features")
        self.teacher = teacher.requires_grad_(False).eval()
        self.distance = (
            FeatureDistance(model, teacher, layers, input_shape)
            if loss == "features"
            else LogitDistance(temperature if loss == "kl" else None)
        )
        self._share = share

    def train(self, mode: bool = True) -> Distillation:
        """Set the training mode, but keep the teacher in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are class indices, (B,) int64, or class probabilities, (B, num_classes)."""
        self.distance.capture_student(self.model)
        return self.assess(self.model(batch.inputs), batch)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the losses of the student's logits, (B, num_classes)."""
        logits = widened(outputs)
        self.distance.capture_teacher(self.teacher)
        with torch.no_grad():
            teacher_logits = widened(self.teacher(batch.inputs))
        distance = self.distance(self.model, self.teacher, logits, teacher_logits)
        entropy = cross_entropy(logits, batch.targets, None, 0.0, None)
        losses = {"weighted": (1 - self._share) * entropy + self._share * distance}
        measurements = {"cross_entropy": entropy.detach(), "distillation": distance.detach()}
        if self.measures:
            measurements["accuracy"] = are_correct(logits, batch.targets)
            measurements["agreement"] = are_correct(logits, teacher_logits)
        return Outcome(losses, measurements, logits.detach(), len(batch.targets))

    def predict(self, inputs: Tensors) -> dict[str, Tensor]:
        """Return the classes that the student predicts."""
        return class_predictions(widened(self.model(inputs)))
