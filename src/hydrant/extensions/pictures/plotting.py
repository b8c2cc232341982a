"""Figures of a run: images, curves, bars, a confusion matrix, and a line of text; pictures of inputs and of mistakes.

The pictures of an evaluation cost nothing if they are not configured.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.batch import Batch, Outcome
from hydrant.terminal.text import percent
from hydrant.training.distributed.world import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Draw = Callable[[Path], None]
"""Writes a PNG."""

Curve = tuple[Sequence[float], Sequence[float]]
"""(x, y) of the same length."""

_MAX_LABELS = 8  # of a legend that names every curve
_MAX_LETTERS = 60  # of a label of a legend
_BARS = " ▁▂▃▄▅▆▇█"


def _new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not pyplot, which is slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path | BinaryIO) -> None:
    # The default level makes files a sixth smaller, but takes a quarter of the time of a picture.
    figure.savefig(path, dpi=110, format="png", pil_kwargs={"compress_level": 1})


def draw_pixels(picture: Tensor, path: Path) -> None:
    """Write a picture, (3 or 1, H, W) in 0..1, as PNG."""
    from PIL import Image

    pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).numpy()
    Image.fromarray(pixels).save(path)


def draw_images(images: Tensor, titles: Sequence[str], path: Path) -> None:
    """Write a PNG of images, (N, 3 or 1, H, W), each scaled to its own range, with a title above it."""
    num_columns = min(8, len(images))
    num_rows = -(-len(images) // num_columns)
    num_lines = 1 + max(title.count("\n") for title in titles)
    figure = _new_figure(1.5 * num_columns, (1.4 + 0.2 * num_lines) * num_rows, layout="constrained")
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for panel in axes:
        panel.set_axis_off()
    for panel, image, title in zip(axes, images.float(), titles, strict=False):
        low, high = image.amin(), image.amax()
        pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).squeeze(2)
        panel.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(title, fontsize="small")
    _save(figure, path)


def draw_confusion(counts: Tensor, class_names: Sequence[str] | None, path: Path) -> None:
    """Write a PNG of a confusion matrix, (C, C): rows are classes, columns predictions; colors are row ratios.

    Up to 20 classes have their names, or else their numbers.
    """
    ratios = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    num_classes, has_numbers = len(counts), len(counts) <= 20
    side = max(4.0, 0.45 * num_classes) if has_numbers else 9.0
    figure = _new_figure(side + 1.2, side, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(ratios.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if has_numbers:
        names = list(class_names or map(str, range(num_classes)))
        names = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
        is_short = max(map(len, names)) <= 3
        axes.set_xticks(
            range(num_classes), names, rotation=0 if is_short else 45, ha="center" if is_short else "right"
        )
        axes.set_yticks(range(num_classes), names)
        for row, column in counts.nonzero().tolist():
            color = "white" if ratios[row, column] > 0.5 else "black"
            number = f"{int(counts[row, column]):,}"
            axes.text(column, row, number, ha="center", va="center", color=color, fontsize="small")
    num_correct = int(counts.diagonal().sum())
    title = f"{num_correct:,} of {int(counts.sum()):,} correct"
    axes.set(xlabel="predicted class", ylabel="true class", title=title)
    figure.colorbar(image, ax=axes, label="ratio of the true class", shrink=0.8)
    _save(figure, path)


def draw_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    path: Path | BinaryIO,
    *,
    columns: int = 1,
    shown: tuple[float, float] | None = None,
    names_all: bool = False,
) -> None:
    """Write a PNG with a panel for each title and, in it, a curve over the updates for each label.

    A panel whose only label is "" has no legend. In one column, legends are beside the panels and cover no curve.
    With many labels, the colours of its curves go from dark to light in their order, and the legend has a few of them,
    or all if `names_all`. `shown` is the range of values.
    """
    figure, lines = _panels(tuple(tuple(curves) for curves in panels.values()), columns, names_all)
    for panel, of_panel, (title, curves) in zip(figure.axes, lines, panels.items(), strict=False):
        for line, (x, y) in zip(of_panel, curves.values(), strict=True):
            line.set_data(x, y)
        panel.set(xlim=(0, 1), ylim=(0, 1))  # where no value is finite
        panel.relim()
        panel.autoscale()
        if shown is not None:
            panel.set_ylim(shown)
        panel.set_title(title, y=1.0)  # a fixed height spares matplotlib measuring what lies below
    _save(figure, path)


@lru_cache(maxsize=2)
def _panels(
    labels: Sequence[Sequence[str]], columns: int, names_all: bool = False
) -> tuple[Figure, list[list[Line2D]]]:
    """Return a figure with a panel for each entry, and the lines of each panel, one for each of its labels.

    The last ones are kept, because every run draws its schedules, and those of a process mostly have the same panels.
    """
    num_rows = -(-len(labels) // columns)
    most = max(map(len, labels)) if names_all else _MAX_LABELS
    named = [_colors_and_labels(of_panel, most) for of_panel in labels]
    longest = max((len(label) for _, texts in named for label in texts), default=0)
    is_beside = columns == 1 and longest > 0
    beside = 0.55 + 0.064 * min(longest, _MAX_LETTERS) if is_beside else 0.0  # inches for the legends
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0} if is_beside else {}
    of_row = max(2.8, 0.95 + 0.175 * most)
    width, height = 8 + beside if columns == 1 else 5 * columns, of_row * num_rows  # inches, as below
    figure = _new_figure(width, height)
    # A fixed layout, because every run draws this figure and an automatic layout draws everything twice.
    figure.subplots_adjust(
        left=0.9 / width,
        right=1 - (0.25 + beside) / width,
        top=1 - 0.4 / height,
        bottom=0.55 / height,
        wspace=1.15 / 3.85,
        hspace=0.95 / 1.85,
    )
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for panel in axes[len(labels) :]:
        panel.set_visible(False)
    lines: list[list[Line2D]] = []
    for panel, of_panel, (colors, shown) in zip(axes, labels, named, strict=False):
        lines.append(
            [
                panel.plot([], [], label=shown.get(label), linewidth=1.5, color=color)[0]
                for label, color in zip(of_panel, colors, strict=True)
            ]
        )
        panel.set_xlabel("update")
        panel.grid(alpha=0.3)
        if set(of_panel) != {""}:
            panel.legend(fontsize="small", **place)
    return figure, lines


def _colors_and_labels(labels: Sequence[str], most: int) -> tuple[Sequence[Any], Mapping[str, str]]:
    """Return a colour for each curve, None for matplotlib's own, and the text of each label that the legend has.

    `most`: so many labels are in a legend; of more, it has five.
    """
    texts = {
        label: label if len(label) <= _MAX_LETTERS else f"{label[: _MAX_LETTERS - 1]}…" for label in labels
    }
    if len(labels) <= _MAX_LABELS:
        return [None] * len(labels), texts
    import matplotlib as mpl

    last, num_shown = len(labels) - 1, len(labels) if len(labels) <= most else 5
    colors = [mpl.colormaps["viridis"](0.92 * n / last) for n in range(len(labels))]
    places = [round(n * last / (num_shown - 1)) for n in range(num_shown)]
    return colors, {labels[place]: texts[labels[place]] for place in places}


@dataclass(frozen=True)
class Measured:
    """Values of one setting, and the interval of their mean; None: not bounded."""

    label: str
    values: Sequence[float]
    low: float | None
    high: float | None


def draw_intervals(rows: Sequence[Measured], title: str, path: Path) -> None:
    """Write a PNG of the mean of each row with its interval, the first on top, and its values as dots."""
    figure = _new_figure(8, 1.2 + 0.45 * len(rows), layout="constrained")
    axes = figure.subplots()
    for n, row in enumerate(rows):
        axes.scatter(row.values, [n] * len(row.values), color="tab:gray", alpha=0.5, s=14)
        mean = sum(row.values) / len(row.values)
        if row.low is not None and row.high is not None:
            axes.hlines(n, row.low, row.high, color="tab:blue", linewidth=2)
        axes.plot([mean], [n], "o", color="tab:blue")
    values = [value for row in rows for value in row.values]
    space = (
        0.5 * (max(values) - min(values)) or 0.1 * abs(values[0]) or 1.0
    )  # a wide interval hides no difference
    axes.set(xlabel=title, xlim=(min(values) - space, max(values) + space), ylim=(-0.6, len(rows) - 0.4))
    axes.set_yticks(range(len(rows)), [textwrap.shorten(row.label, 40) for row in rows])
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    _save(figure, path)


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a curve as one line of text.

    >>> sparkline([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    top = max(values)
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    peaks = [max(values[a:b]) for a, b in itertools.pairwise(edges)]
    levels = len(_BARS) - 1
    return "".join(_BARS[max(round(v / top * levels), 1) if v > 0 else 0] for v in peaks)


Observe = Callable[[Batch, Outcome], None]
"""Receives every batch of an evaluation."""

When = Literal["end", "evaluation"]

NUM_SAMPLES = 24
_MAX_CLASSES = 2000  # whose confusion matrix takes 32 MB
_NAME_WIDTH = 16  # characters of a class name above an image


class _Mistakes(NamedTuple):
    """Wrongly classified samples, the worst first."""

    losses: Tensor  # (N,); -inf for a correct prediction
    probabilities: Tensor  # (N,), of the predicted class
    targets: Tensor  # (N,)
    predicted: Tensor  # (N,)
    inputs: Tensor  # (N, C, H, W); if the inputs are no images, not used

    def worst(self) -> _Mistakes:
        order = self.losses.topk(min(NUM_SAMPLES, len(self.losses))).indices
        return _Mistakes(*(values.index_select(0, order) for values in self))

    def join(self, more: _Mistakes) -> _Mistakes:
        return _Mistakes(*(torch.cat(pair) for pair in zip(self, more, strict=True)))


class _Predictions:
    """The confusion matrix and the worst mistakes of one evaluation, kept on the device without a host sync.

    Targets that are no class, such as -100, do not count. If a sample has several targets, such as pixels, there is
    only the confusion matrix.
    """

    def __init__(self, class_names: Sequence[str] | None) -> None:
        self._class_names = class_names
        self._num_classes = 0
        self._counts: Tensor | None = None  # of pairs of classes; the last: no class
        self._mistakes: _Mistakes | None = None

    def __call__(self, batch: Batch, outcome: Outcome) -> None:
        """Add the predictions of a batch, if they are logits of classes."""
        num_classes = _num_classes(batch.targets, outcome.predictions)
        if num_classes is None or num_classes > _MAX_CLASSES:
            return
        logits, targets = cast("Tensor", outcome.predictions).float(), batch.targets.long()
        if self._counts is None:
            self._num_classes = num_classes
            self._counts = torch.zeros(num_classes**2 + 1, dtype=torch.int64, device=logits.device)
        probabilities, predicted = logits.softmax(dim=1).max(dim=1)
        is_class = (targets >= 0) & (targets < self._num_classes)
        pairs = (targets * self._num_classes + predicted).where(is_class, self._num_classes**2).flatten()
        self._counts.scatter_add_(0, pairs, torch.ones_like(pairs))
        if targets.ndim > 1:
            return
        classes = targets.clamp(0, self._num_classes - 1)
        losses = F.cross_entropy(logits, classes, reduction="none").nan_to_num(math.inf)
        losses = losses.masked_fill((predicted == targets) | ~is_class, -math.inf)
        shown = batch.inputs if _are_images(batch.inputs) else targets
        mistakes = _Mistakes(losses, probabilities, targets, predicted, shown)
        self._mistakes = (mistakes if self._mistakes is None else self._mistakes.join(mistakes)).worst()

    def pictures(self, world: World, all_reduce: Callable[[Tensor], Tensor]) -> dict[str, Draw]:
        """Return the pictures of the predictions of all ranks, which call this together."""
        if self._counts is None:
            return {}
        confusion = all_reduce(self._counts)[:-1].cpu().view(self._num_classes, self._num_classes)
        mistakes = None if self._mistakes is None else _Mistakes(*(values.cpu() for values in self._mistakes))
        per_rank = [part for part in world.all_gather(mistakes) if part is not None]
        pictures: dict[str, Draw] = {"confusion": partial(draw_confusion, confusion, self._class_names)}
        if per_rank:
            worst = _Mistakes(*map(torch.cat, zip(*per_rank, strict=True))).worst()
            worst = _Mistakes(*(values[worst.losses > -math.inf] for values in worst))
            if _are_images(worst.inputs) and len(worst.losses):
                titles = _mistake_titles(worst, self._class_names)
                pictures["mistakes"] = partial(draw_images, worst.inputs, titles)
        return pictures


def _mistake_titles(mistakes: _Mistakes, class_names: Sequence[str] | None) -> list[str]:
    columns = (mistakes.targets, mistakes.predicted, mistakes.probabilities)
    rows = [
        (_class_name(class_names, target), _class_name(class_names, predicted), probability)
        for target, predicted, probability in zip(*(column.tolist() for column in columns), strict=True)
    ]
    is_short = max(len(name) for row in rows for name in row[:2]) <= 3
    between = ", " if is_short else "\n"
    return [f"{target}{between}predicted {predicted}\n({percent(p)} sure)" for target, predicted, p in rows]


def _class_name(class_names: Sequence[str] | None, number: int) -> str:
    """Return the name of a class, cut to the width of an image; its number if it has none."""
    names = class_names or ()
    name = names[number] if 0 <= number < len(names) else str(number)
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"


class EvaluationPictures:
    """Collects the predictions of evaluations and draws the configured pictures.

    What does not fit, such as predictions that are no classes, is left out.

    Args:
        when: draw after every `evaluation`, after the last one (`end`), or never (None).
        class_names: None: the classes are numbers.
    """

    def __init__(self, when: When | None, class_names: Sequence[str] | None) -> None:
        self._when, self._class_names = when, class_names
        self._predictions: _Predictions | None = None

    @property
    def is_on(self) -> bool:
        return self._when is not None

    def observer(self) -> Observe | None:
        """Start an evaluation; return the function to call with each of its batches, or None if nothing is drawn."""
        self._predictions = _Predictions(self._class_names) if self.is_on else None
        return self._predictions

    def pictures(
        self, world: World, all_reduce: Callable[[Tensor], Tensor], *, is_last: bool
    ) -> dict[str, Draw]:
        """Return the pictures of the latest evaluation; all ranks call this together.

        Args:
            world: the ranks, whose mistakes are gathered.
            all_reduce: sums a tensor over the ranks.
            is_last: the run ends after this evaluation.
        """
        if self._predictions is None or (self._when == "end" and not is_last):
            return {}
        return self._predictions.pictures(world, all_reduce)


def _num_classes(targets: Any, predictions: Any) -> int | None:
    """Return C if the targets are class indices, (B, ...), and the predictions their logits, (B, C, ...)."""
    if not (isinstance(targets, Tensor) and isinstance(predictions, Tensor)):
        return None
    is_index = not (targets.is_floating_point() or targets.is_complex() or targets.dtype is torch.bool)
    shape = predictions.shape
    fits = predictions.ndim > 1 and shape[1] > 1 and targets.shape == (shape[0], *shape[2:])
    return shape[1] if is_index and fits else None


def input_pictures(batch: Batch, class_names: Sequence[str] | None = None) -> dict[str, Draw]:
    """Return a picture of the first samples of a batch as the model receives them; {} if they are not images."""
    if not _are_images(batch.inputs):
        return {}
    images, targets = batch.inputs[:NUM_SAMPLES].cpu(), batch.targets
    has_titles = isinstance(targets, Tensor) and 1 <= targets.ndim <= 2
    titles = (
        [_target_title(target, class_names) for target in targets[:NUM_SAMPLES].cpu()]
        if has_titles
        else [""] * len(images)
    )
    return {"inputs": partial(draw_images, images, titles)}


def _target_title(target: Tensor, class_names: Sequence[str] | None) -> str:
    """Return the class or number, the two classes with the largest weights of a mixed target, or the labels."""
    if target.ndim == 0:
        number = target.item()
        return f"{number:.4g}" if isinstance(number, float) else _class_name(class_names, number)
    if not target.is_floating_point() or not math.isclose(float(target.sum()), 1, rel_tol=1e-3):
        labels = target.nonzero().flatten().tolist()
        names = [_class_name(class_names, label) for label in labels[:4]]
        return ", ".join(names) + (" ..." if len(labels) > 4 else "")
    weights, classes = target.topk(min(2, len(target)))
    pairs = zip(weights.tolist(), classes.tolist(), strict=True)
    return ", ".join(
        f"{_class_name(class_names, number)}: {percent(weight)}" for weight, number in pairs if weight > 0
    )


def _are_images(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] in (1, 3)
