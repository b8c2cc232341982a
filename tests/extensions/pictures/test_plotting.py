"""Curves that are drawn into a figure that was drawn before look as in a new one."""

from io import BytesIO
from typing import Any

import pytest
from marks import slow
from PIL import Image

from hydrant.extensions.pictures import plotting
from hydrant.extensions.pictures.plotting import draw_curves

pytestmark = pytest.mark.figures


def panels(*labels: str, peak: float, num_updates: int = 50) -> dict[str, Any]:
    curves = {
        label: (range(num_updates), [peak / (1 + k + n) for n in range(num_updates)])
        for k, label in enumerate(labels)
    }
    return {f"{field} of {peak}": curves for field in ("lr", "momentum")}


def pixels(content: dict[str, Any]) -> bytes:
    file = BytesIO()
    draw_curves(content, file, columns=2)
    with Image.open(file) as image:
        return image.tobytes()


@pytest.mark.parametrize("labels", [("head", "body"), *slow((("",),), (tuple(map(str, range(12))),))])
def test_a_figure_that_is_used_again_shows_only_the_new_curves(labels: tuple[str, ...]) -> None:
    second = panels(*labels, peak=3e-5, num_updates=7)
    pixels(panels(*labels, peak=2000.0))
    again = pixels(second)
    plotting._panels.cache_clear()
    assert again == pixels(second)


def test_curves_without_finite_values_do_not_show_the_ticks_of_others() -> None:
    nothing = {"lr": {"": (range(3), [float("nan")] * 3)}}
    plotting._panels.cache_clear()
    alone = pixels(nothing)
    pixels({"lr": {"": (range(300), [float(n) for n in range(300)])}})
    assert pixels(nothing) == alone


@pytest.mark.parametrize("num", [5, *slow(2, 12)])
@pytest.mark.parametrize(
    "label", ["sgd", "optimizer=adamw optimizer.lr=0.001 seed", "optimizer.weight_decay" * 9]
)
def test_the_legend_of_one_column_is_beside_its_panel(label: str, num: int) -> None:
    """It covers no curve, and is in the picture."""
    labels = tuple(f"{n} {label}" for n in range(num))
    figure, _ = plotting._panels((labels, labels), 1)
    figure.canvas.draw()
    for panel in figure.axes:
        legend = panel.get_legend()
        assert legend is not None
        place = legend.get_window_extent()
        assert panel.bbox.x1 < place.x0 < place.x1 < figure.bbox.x1
