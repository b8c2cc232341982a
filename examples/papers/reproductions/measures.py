"""What the reproductions measure, as functions of their runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from examples.papers.reproductions.finding import Finding, Lines, Panel, Row, groups, of_each_seed


def _of_part(rows: Sequence[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _schedules(rows: Sequence[Row]) -> dict[str, dict[int, list[float]]]:
    """Return the losses of the seeds by schedule and duration."""
    by_schedule = {
        "cosine": [row for row in rows if row["part"] == "cosine"],
        "WSD": [row for row in rows if row["part"] != "cosine"],
    }
    return {
        name: {
            int(duration): [row["val/loss"] for row in found]
            for duration, found in groups(of_schedule, "duration").items()
        }
        for name, of_schedule in by_schedule.items()
    }


def durations(rows: Sequence[Row]) -> list[Finding]:
    """The loss of WSD less that of a cosine of the same duration and seed."""
    losses = _schedules(rows)
    return [
        Finding(
            f"{duration} updates, one untuned lr: val/loss of WSD less that of cosine",
            [ours - theirs for ours, theirs in zip(losses["WSD"][duration], cosine, strict=True)],
            -0.03,
            0.03,
        )
        for duration, cosine in losses["cosine"].items()
    ]


def durations_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The loss over the duration."""
    return [Lines("after the last update", "updates", "val/loss", _schedules(rows))]


def _values(rows: Sequence[Row], part: str, metric: str = "val/accuracy") -> list[float]:
    """Return a metric of the seeds."""
    return [row[metric] for row in sorted(_of_part(rows, part), key=lambda row: row["seed"])]


def _within(rows: Sequence[Row], part: str, title: str, low: float, high: float) -> Finding:
    return Finding(f"{title}: accuracy", _values(rows, part), low, high)


def models(rows: Sequence[Row]) -> list[Finding]:
    """The accuracy of each model, and that they differ as the paper says."""
    accuracies = {"logistic": 0.32, "mlp": 0.68, "cnn": 0.94, "gru": 0.91}
    found = [_within(rows, part, MODELS[part], one - 0.02, one + 0.02) for part, one in accuracies.items()]
    found[1] = replace(found[1], what="our MLP, not the authors': accuracy", is_test=False)
    for better, worse in (("mlp", "logistic"), ("cnn", "mlp")):
        gains = [a - b for a, b in zip(_values(rows, better), _values(rows, worse), strict=True)]
        found.append(Finding(f"{MODELS[better]} less {MODELS[worse]}: accuracy", gains, 0.0, math.inf))
    return found


MODELS = {"logistic": "logistic regression", "mlp": "MLP", "cnn": "convolutional network", "gru": "GRU"}


def models_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The accuracy over the updates."""
    points = {
        MODELS[part]: _by_update(_of_part(rows, part), "val/accuracy")
        for part in MODELS
        if _of_part(rows, part)
    }
    return [Lines("MNIST-1D", "updates", "test accuracy", points)]


def _by_update(rows: Sequence[Row], metric: str) -> dict[float, list[float]]:
    """Return the values of the seeds at each point of their curves."""
    found: dict[float, list[float]] = {}
    for row in rows:
        for update, value in row[f"{metric} curve"]:
            found.setdefault(update, []).append(value)
    return found


OURS = "our two-stage network"


def clothes(rows: Sequence[Row]) -> list[Finding]:
    """The accuracy of both networks."""
    return [
        _within(rows, "mlp", "MLP 256-128-64", 0.89, 0.91),
        replace(_within(rows, "cnn", f"{OURS}, not the table's", 0.866, 0.926), is_test=False),
    ]


def clothes_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The accuracy of each seed."""
    points = {
        name: {float(row["seed"]): [row["val/accuracy"]] for row in _of_part(rows, part)}
        for part, name in (("mlp", "MLP 256-128-64"), ("cnn", OURS))
    }
    return [Lines("Fashion-MNIST", "seed", "test accuracy", points, levels={"published MLP": 0.9})]


def _updates(rows: Sequence[Row]) -> dict[int, list[float]]:
    """Return the updates to the target of each seed by batch size, at the lr that needs the fewest on average."""
    found: dict[int, list[float]] = {}
    for size, of_size in groups(_of_part(rows, "sgd"), "global_batch_size").items():
        tried = [[row["updates"] for row in of_lr] for of_lr in groups(of_size, "optimizer.lr").values()]
        reached = [updates for updates in tried if None not in updates]
        if reached:
            found[size] = min(reached, key=fmean)
    return found


def _critical(updates: Mapping[int, float]) -> tuple[float, float]:
    """Return the least number of updates and the critical batch size, of S(B) = least * (1 + critical / B).

    >>> least, critical = _critical({8: 40.0, 16: 25.0, 32: 17.5})
    >>> round(least, 6), round(critical, 6)
    (10.0, 24.0)
    """
    sizes, needed = np.array(list(updates)), np.array(list(updates.values()))
    slope, least = np.polyfit(1 / sizes, needed, 1, w=1 / needed)  # linear in 1 / B; relative errors count
    return float(least), float(slope / least)


def _noise(row: Row) -> float:
    """Return the median of the noise scale until the target."""
    return median(
        value for update, value in row["gradient_noise/scale curve"] if update <= (row["updates"] or math.inf)
    )


def batch_sizes(rows: Sequence[Row]) -> list[Finding]:
    """By how much the smallest and the largest doubling of the batch reduce the updates, and the noise scale."""
    updates = _updates(rows)
    sizes = list(updates)
    ends = ((sizes[0], sizes[1], 1.6, 2.4), (sizes[-2], sizes[-1], 0.0, 1.3))
    ratios = [
        Finding(
            f"batch {before} to {after}: ratio of updates",
            [a / b for a, b in zip(updates[before], updates[after], strict=True)],
            low,
            high,
        )
        for before, after, low, high in ends
    ]
    noise = of_each_seed(_of_part(rows, "noise"), lambda found: fmean(map(_noise, found)))
    decades = [
        math.log10(scale / _critical({size: values[n] for size, values in updates.items()})[1])
        for n, scale in enumerate(noise)
    ]
    return [
        *ratios,
        Finding(
            "noise scale over critical batch size, in decades",
            decades,
            -1.0,
            1.0,
            paper="McCandlish et al., 2018",
        ),
    ]


def batch_sizes_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The updates over the batch size, with the fit of McCandlish et al., and the noise scale over the updates."""
    updates = {float(size): values for size, values in _updates(rows).items()}
    least, critical = _critical({size: fmean(values) for size, values in _updates(rows).items()})
    label = f"{least:.0f} (1 + {critical:.0f} / B)"
    fit = {size: [least * (1 + critical / size)] for size in updates}
    needed = {"best lr": updates, label: fit}
    return [
        Lines("updates to val/loss 0.2", "batch size B", "updates", needed, log="xy"),
        Lines(
            "gradients of batches of 64",
            "updates",
            "samples",
            {"noise scale": _by_update(_of_part(rows, "noise"), "gradient_noise/scale")},
            log="y",
            levels={"critical batch size of the fit": critical},
        ),
    ]


def _errors(rows: Sequence[Row], metric: str) -> dict[int, list[float]]:
    """Return the errors of the seeds by width."""
    by_width = groups([{**row, "width": row["model.hidden"][0]} for row in rows], "width")
    return {width: [1 - row[metric] for row in found] for width, found in by_width.items()}


def double_descent(rows: Sequence[Row]) -> list[Finding]:
    """The test error where a network begins to fit all labels, less that of smaller and of the largest networks."""
    train, test = _errors(rows, "train/accuracy"), _errors(rows, "val/accuracy")
    widths = list(test)
    fitting = [width for width in widths[1:-1] if fmean(train[width]) <= 0.01]
    threshold = fitting[0] if fitting else widths[-2]
    before = min((width for width in widths if width < threshold), key=lambda width: fmean(test[width]))
    return [
        Finding(
            f"test error at width {threshold} less that at width {width}",
            [ours - other for ours, other in zip(test[threshold], test[width], strict=True)],
            0.0,
            math.inf,
        )
        for width in (before, widths[-1])
    ]


def double_descent_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The error over the width."""
    points = {"training, with wrong labels": "train/accuracy", "test": "val/accuracy"}
    return [
        Lines(
            "MNIST-1D with 15 % wrong labels",
            "width",
            "error",
            {name: _errors(rows, metric) for name, metric in points.items()},
            log="x",
        )
    ]


def edge_of_stability(rows: Sequence[Row]) -> list[Finding]:
    """The sharpness as a multiple of 2/lr: its median over the second half of the updates."""

    def multiple(found: Sequence[Row]) -> float:
        (curve,) = (row["sharpness/hessian curve"] for row in found)
        return (
            median(value for update, value in curve if 2 * update >= curve[-1][0])
            * found[0]["optimizer.lr"]
            / 2
        )

    return [
        Finding(
            f"lr {lr}{EDGES[part]}: sharpness as a multiple of 2/lr", of_each_seed(found, multiple), 0.9, 1.5
        )
        for part in EDGES
        for lr, found in groups(_of_part(rows, part), "optimizer.lr").items()
    ]


EDGES = {"sgd": ", 20 % wrong", "harder": ", 80 % wrong"}


def edge_of_stability_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The sharpness over the updates for each learning rate."""
    return [
        Lines(
            f"lr {lr}{EDGES[part]}",
            "updates",
            "sharpness",
            {"largest eigenvalue": _by_update(found, "sharpness/hessian")},
            levels={"2/lr": 2 / lr},
        )
        for part in EDGES
        for lr, found in groups(_of_part(rows, part), "optimizer.lr").items()
    ]


def _when_fitted(row: Row) -> float:
    """Return the validation accuracy when that of the training set is first 0.99; the last one if it never is."""
    fitted = [update for update, value in row["train/accuracy curve"] if value >= 0.99]
    after = [value for update, value in row["val/accuracy curve"] if fitted and update >= fitted[0]]
    return after[0] if after else row["val/accuracy"]


def grokking(rows: Sequence[Row]) -> list[Finding]:
    """The validation accuracy when the training set is fitted, and how decay and fewer pairs change the last one."""
    fitted = of_each_seed(_of_part(rows, "decay"), lambda found: _when_fitted(found[0]))
    last = {part: _values(rows, part) for part in GROKKING}
    found = [
        Finding("validation accuracy when the training set is fitted", fitted, 0.0, 0.5),
        Finding("validation accuracy after the last update", last["decay"], 0.9, 1.0),
    ]
    for part in ("without", "fewer"):
        gains = [ours - other for ours, other in zip(last["decay"], last[part], strict=True)]
        found.append(Finding(f"last validation accuracy less that {GROKKING[part]}", gains, 0.0, math.inf))
    return found


GROKKING = {"decay": "with decay", "without": "without decay", "fewer": "with fewer pairs"}


def grokking_panels(rows: Sequence[Row]) -> Sequence[Panel]:
    """The accuracies over the updates."""
    metrics = {"training": "train/accuracy", "validation": "val/accuracy"}
    return [
        Lines(
            title,
            "updates",
            "accuracy",
            {name: _by_update(_of_part(rows, part), metric) for name, metric in metrics.items()},
        )
        for part, title in GROKKING.items()
    ]
