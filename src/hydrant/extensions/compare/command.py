"""The command line of `hydrant compare`, and a comparison as one HTML page.

The page contains its data, and the scripts and styles of the folder `page`. It works offline. With `--follow`, it is
written again while runs train, and loads itself again. Its curves are thinned to what a picture can show.
"""

import base64
import gzip
import hashlib
import json
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import asdict
from scipy import special

from hydrant.config.command_line import Flags, writing_to
from hydrant.config.metric_keys import mode_by_name
from hydrant.errors import ConfigError, HydrantError
from hydrant.extensions.compare import SERVICES, statistics
from hydrant.extensions.compare.comparison import Comparison, compare
from hydrant.extensions.compare.groups import bounds_of, unit_weights
from hydrant.extensions.compare.run import FloatArray, Run, Series, as_text
from hydrant.extensions.compare.sections import FIGURES
from hydrant.extensions.compare.serialize import for_paper, to_brief, to_csv, to_dict, to_text
from hydrant.extensions.compare.sources import Question, read_runs
from hydrant.files.on_disk import json_safe, replace_file
from hydrant.files.plain_values import check_value
from hydrant.installation import entry_points
from hydrant.runs.folder import PICTURES, SWEEP_PLAN, RunStatus
from hydrant.sweeps.plan import is_running, sweep_progress
from hydrant.terminal.console import answer, emit, notice, say, wants_json
from hydrant.terminal.text import PaperTable, paper_table

_LISTS = ("by", "best_over", "tuned")
_TEXTS = ("metric", "mode", "baseline", "target", "against")
_NUMBERS = ("sigma", "critical", "difference", "tolerance")


class _Keys(list[str]):
    """The keys of a flag, parted by commas."""

    def __init__(self, text: str) -> None:
        super().__init__(key for key in text.split(",") if key)


def main(arguments: Sequence[str]) -> int:
    """Compare runs. Return the exit status."""
    services = entry_points(SERVICES)
    types = dict.fromkeys(_LISTS, _Keys) | dict.fromkeys(_TEXTS, str) | dict.fromkeys(_NUMBERS, float)
    flags = dict.fromkeys(("follow", "csv", "details", *services), False)
    options, words = Flags("compare", html=Path, table=str, **flags, **types).split(arguments)
    if options.follow and options.html is None:
        raise ConfigError("--follow", "writes a page again and again", remedy="name it: --html FILE")
    if options.table is not None:
        check_value("--table", PaperTable, options.table)
    savers = [point.load().view_saver() for name, point in services.items() if getattr(options, name)]
    asked: dict[str, Any] = {field.name: getattr(options, field.name) for field in fields(Question)}
    question = Question(**asked)
    if options.follow:
        with writing_to("--html", options.html, ".html"):
            result = follow(words, question, options.html)
    else:
        result = compare(read_runs(words, question.varied), question)
    if options.html is not None:
        with writing_to("--html", options.html, ".html"):
            write_page(result, options.html)
    if wants_json():
        answer(to_dict(result) if options.details else to_brief(result))
    elif options.table:
        tables = for_paper(result)[: 1 if options.table == "csv" else None]  # a program reads one
        emit("\n\n".join(paper_table(options.table, *table) for table in tables))
        if options.table == "csv":
            notice(tables[0][1])
    elif options.csv:
        emit(to_csv(result))
    else:
        say(to_text(result, options.html, details=options.details))
    for save in savers:
        for line in save(result):
            notice(line)
    return 0


SCRIPTS = (
    "dom", "scales", "state", "choices", "filter", "tables", "figure", "saving", "axes", "groups", "panels", "curves",
    "schedules", "scatter", "history", "heatmap", "brush", "parallel", "profile", "noise", "sensitivity",
    "tuning", "progress", "pictures", "run", "follow", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""


def write_page(comparison: Comparison, path: Path, reload_seconds: float = 0.0) -> None:
    """Write the page to a file, whole or not at all. An open page loads itself again after so many seconds, if any."""
    parts = {
        "comparison": to_dict(comparison)
        | {"figure_titles": {name: title for name, (_, title) in FIGURES.items()}},
        "curves": curves(comparison),
        "details": details(comparison.runs),
        "progress": progress(comparison.runs),
        "pictures": embedded_pictures(comparison.runs),
    }
    text = page({name: encoded(part) for name, part in parts.items()}, reload_seconds)
    replace_file(path.resolve(), text)  # write through a link instead of replacing it


def encoded(part: Any) -> str:
    """Return a part of the data as compressed JSON in base64, which the page decodes."""
    text = json.dumps(part, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def page(parts: Mapping[str, str], reload_seconds: float) -> str:
    """Return the page with its encoded data by name."""
    scripts = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    script = f'\n(function () {{\n"use strict";\n{scripts}\n}})();\n'
    return Template(_read("page.html")).substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_read("page.css"),
        figure_style=_read("figure.css"),
        reload=f"{reload_seconds:g}",
        data=json.dumps(parts),  # base64 cannot end the script
        script=script,
    )


@cache
def _read(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def details(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the most frequent value of each config key, and the others of each run (None: no such key)."""
    configs = [{key: as_text(value) for key, value in run.config.items()} for run in runs]
    keys = sorted({key for config in configs for key in config})
    values = {key: [config[key] for config in configs if key in config] for key in keys}
    common = {key: Counter(texts).most_common(1)[0][0] for key, texts in values.items()}
    differing = [{k: one.get(k) for k, text in common.items() if one.get(k) != text} for one in configs]
    return {"common": common, "runs": differing}


MAX_BYTES = 384 << 10
"""The pictures in a page have at most this many bytes together, so that a page can be sent by mail."""

_PICTURE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def embedded_pictures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the latest picture of each name of each run, until `MAX_BYTES`; and how many are left out.

    A picture has `name`, the update `after` which it was drawn (None: unknown), and `source`. Links are left out: they
    may lead elsewhere.
    """
    room, left_out, shown = MAX_BYTES, 0, list[list[dict[str, Any]]]()
    for run in runs:
        shown.append([])
        files = [] if run.folder is None else sorted(run.folder.resolve().glob(f"{PICTURES}/*/*"))
        pictures = [file for file in files if file.suffix in _PICTURE_TYPES and file.resolve() == file]
        for name, file in {file.parent.name: file for file in pictures if file.is_file()}.items():
            with suppress(OSError):  # it was just removed
                size = file.stat().st_size
                if size > room:
                    left_out += 1
                    continue
                content = base64.b64encode(file.read_bytes()).decode()
                number = re.search(r"\d+", file.name)
                source = f"data:{_PICTURE_TYPES[file.suffix]};base64,{content}"
                shown[-1].append({"name": name, "after": number and int(number[0]), "source": source})
                room -= size
    return {"runs": shown, "left_out": left_out}


def progress(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how many runs have ended and wait, and the progress of the running ones, as `hydrant status` has it."""
    names = {run.folder.resolve(): run.name for run in runs if run.folder is not None}
    folders = [path.parent if (path.parent / SWEEP_PLAN).exists() else path for path in names]
    every_run = [one for folder in dict.fromkeys(folders) for one in sweep_progress(folder)]
    known = {path: one for one in every_run if (path := Path(one.folder).resolve()) in names}
    running = [
        json_safe({**asdict(one), "name": names[path]}) for path, one in known.items() if is_running(one)
    ]
    states = Counter(one.state for one in known.values())
    num_waiting = states[RunStatus.QUEUED]
    num_ended = len(runs) - len(running) - num_waiting - states[RunStatus.MISSING]
    return {"num_runs": len(runs), "num_ended": num_ended, "num_waiting": num_waiting, "running": running}


_REST, _RELOAD = 2.0, 5.0  # seconds: between two looks at the files, and for an open page to wait, at least

_SHARE = 60  # rest so many times the processor time of a look: a second a minute is used at most


def follow(words: Sequence[str], question: Question, path: Path) -> Comparison:
    """Write the page whenever a run has new rows, until no run trains or waits. Return the last comparison.

    Raises:
        ConfigError: as `read_runs` and `compare`, unless a run that trains may still write what is missing.
        KeyboardInterrupt: Ctrl-C; the last page no longer loads itself again.
    """
    tell, known, was_live, rest = cache(notice), list[Run](), True, _REST
    comparison: Comparison | None = None
    try:
        while True:
            began, is_first = time.process_time(), not known
            runs = read_runs(words, question.varied, tell)
            now = progress(runs)
            is_live = bool(now["running"] or now["num_waiting"])
            if not is_live:
                runs = read_runs(words, question.varied, tell)  # the last one may have ended since
            if runs != known or is_live != was_live:
                with suppress(HydrantError) if is_live else nullcontext():
                    comparison = compare(runs, question)
                    write_page(comparison, path, max(rest, _RELOAD) if is_live else 0.0)
                known, was_live = runs, is_live
            if not is_live and comparison is not None:
                return comparison
            # The first comparison imports much, so its time is not counted.
            rest = _REST if is_first else max(_REST, _SHARE * (time.process_time() - began))
            time.sleep(rest)
    except KeyboardInterrupt:
        if comparison is not None:
            write_page(comparison, path)
        raise


MAX_POINTS = 75_000
"""The curves of all runs have about this many points at most, and so have those of all groups."""

_MIN_CURVE_POINTS, _MAX_CURVE_POINTS = 24, 2000

_DIGITS = 5  # significant, or more where a curve changes less than that

_MAX_DIGITS = 15  # a float has no more

_EXACT = 2.0**53  # below this, a float counts exactly

_CLOCK_POINTS = 64

_MEASURED = ("grad_norm", "loss_scale", "num_skipped")  # metrics of an optimizer that have no schedule


def curves(comparison: Comparison) -> dict[str, Any]:
    """Return the curves by metric: of the runs and of the groups in their order, with None for a missing curve."""
    c = comparison
    metrics = _metrics(c)
    limit = _limit(len(metrics) * len(c.runs))
    means_limit = _limit(len(metrics) * 3 * len(c.groups))  # with both ends of the interval
    scheduled = [m for m in metrics if m.startswith("optim/") and not m.endswith(_MEASURED)]
    return {
        "metrics": metrics,
        "limit": limit,
        "is_thinned": any(len(s.updates) > limit for run in c.runs for s in run.series.values()),
        "runs": {m: [_thinned(run.series.get(m), limit) for run in c.runs] for m in metrics},
        "groups": {
            m: [_mean_curve(g.counted, m, means_limit, bounds_of(m, c.runs)) for g in c.groups]
            for m in metrics
        },
        "schedules": {
            m: [_schedules(g.runs, m, means_limit) for g in c.groups]
            for m in sorted(scheduled, key=lambda m: (m != "optim/lr", m))
        },
        "modes": {m: c.metric.mode if m == c.metric.name else mode_by_name(m) or "max" for m in metrics},
        "clocks": [_clock(run, limit) for run in c.runs],
        "samples_per_update": [run.samples_per_update for run in c.runs],
    }


def _limit(num_curves: int) -> int:
    """Return how many points each of so many curves may have."""
    return min(max(MAX_POINTS // max(num_curves, 1), _MIN_CURVE_POINTS), _MAX_CURVE_POINTS)


def _metrics(c: Comparison) -> list[str]:
    """Return the metrics of the runs, the compared one first. Those of torch.compile are only in the table."""
    metrics = {key for run in c.runs for key in run.series if not key.startswith("compile/")}
    order = ["val", "val_ema", "test", "test_ema", "train", "optim", "perf"]
    phases = {metric: metric.partition("/")[0] for metric in metrics}
    places = {m: order.index(phase) if phase in order else len(order) for m, phase in phases.items()}
    return sorted(metrics, key=lambda metric: (metric != c.metric.name, places[metric], metric))


def _schedules(runs: Sequence[Run], metric: str, limit: int) -> list[dict[str, Any]]:
    """Return the different schedules of a group, as logged."""
    logged = [_thinned(run.series.get(metric), limit) for run in runs]
    return list({json.dumps(curve): curve for curve in logged if curve is not None}.values())


def thinning_indices(values: FloatArray, limit: int) -> list[int]:
    """Return the indices of about `limit` values: the minimum and the maximum of each of `limit` / 2 intervals."""
    if len(values) <= limit:
        return list(range(len(values)))
    size = -(-len(values) // (limit // 2))  # of an interval
    padded = np.pad(values, (0, -len(values) % size), constant_values=np.nan).reshape(-1, size)
    least = np.where(np.isfinite(padded), padded, np.inf).argmin(axis=1)
    greatest = np.where(np.isfinite(padded), padded, -np.inf).argmax(axis=1)
    starts = size * np.arange(len(padded))
    indices = np.concatenate((starts + least, starts + greatest, [0, len(values) - 1]))
    return np.unique(indices).tolist()


def _thinned(series: Series | None, limit: int) -> dict[str, Any] | None:
    if series is None:
        return None
    indices = thinning_indices(series.values, limit)
    return {"u": _plain(series.updates[indices]), "v": _plain(series.values[indices])}


def _mean_curve(
    counted: Mapping[str, Sequence[Run]], metric: str, limit: int, bounds: statistics.Bounds
) -> dict[str, Any] | None:
    """Return the mean over the runs of each seed, then over seeds, at every update where a run has a value.

    Other runs are interpolated linearly; those that have ended are in neither the mean nor its time. If each run has
    one value, as of a test, the mean is one point, also if it was measured after different updates.
    """
    with_metric = {seed: [run for run in runs if metric in run.series] for seed, runs in counted.items()}
    seeds = {seed: of_seed for seed, of_seed in with_metric.items() if of_seed}
    runs = [run for of_seed in seeds.values() for run in of_seed]
    if not runs:
        return None
    updates = np.unique(np.concatenate([run.series[metric].updates for run in runs]))
    are_points = all(len(run.series[metric].updates) == 1 for run in runs)
    updates = np.array([updates.mean()]) if are_points else updates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN for no value, or for the std of one
        pairs = [_curve_of_seed(of_seed, metric, updates) for of_seed in seeds.values()]
        table, clocks = np.array([values for values, _ in pairs]), np.array([clock for _, clock in pairs])
        weights = unit_weights(tuple(seeds))
        units = table if weights is None else weights @ table
        num = np.isfinite(units).sum(axis=0)  # (seeds, updates) -> (updates,)
        mean, std = np.nanmean(table, axis=0), np.nanstd(units, axis=0, ddof=1)
        half = special.stdtrit(num - 1, (1 + statistics.CONFIDENCE) / 2) * std / np.sqrt(num)
        seconds = _mean_where(np.isfinite(table), clocks)
    batches = [run.samples_per_update for run in runs if run.samples_per_update is not None]
    indices = thinning_indices(mean, limit)
    return {
        "u": _plain(updates[indices]),
        "s": _plain(seconds[indices]),
        "n": int(num.max()),
        "v": _plain(mean[indices]),
        "low": _plain(np.maximum(mean - half, bounds[0])[indices]) if len(seeds) > 1 else None,
        "high": _plain(np.minimum(mean + half, bounds[1])[indices]) if len(seeds) > 1 else None,
        "samples_per_update": float(np.mean(batches)) if batches else None,
    }


def _curve_of_seed(runs: Sequence[Run], metric: str, updates: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the mean seconds of training, (updates,), of the runs that have a value there; else NaN."""
    curves = [run.series[metric] for run in runs]
    rows = [
        s.values if len(updates) == 1 else np.interp(updates, s.updates, s.values, left=np.nan, right=np.nan)
        for s in curves
    ]
    values = np.array(rows)  # (runs, updates)
    clocks = np.array([run.seconds(updates) for run in runs])
    return np.nanmean(values, axis=0), _mean_where(np.isfinite(values), clocks)


def _mean_where(is_counted: npt.NDArray[np.bool_], values: FloatArray) -> FloatArray:
    """Return the mean over the first dimension of what counts; NaN if nothing does, or a counted value is NaN."""
    return np.where(is_counted, values, 0.0).sum(axis=0) / is_counted.sum(axis=0)


def _clock(run: Run, limit: int) -> dict[str, Any] | None:
    """Return the seconds of training over updates, in few points. The page interpolates between them."""
    rate = run.series.get("perf/updates_per_second")
    if rate is None:
        return None
    indices = np.unique(np.linspace(0, len(rate.updates) - 1, min(_CLOCK_POINTS, limit)).astype(int))
    updates = np.concatenate(([0.0], rate.updates[indices]))
    return {"u": _plain(updates), "s": _plain(run.seconds(updates))}


def _plain(values: FloatArray) -> list[Any]:
    """Return numbers rounded to few digits, so that their JSON is short; None for numbers that are not finite.

    They keep a thousandth of the range of the later half, which may be a small part of a large number; of the whole
    range if the later half is constant.
    """
    finite = np.isfinite(values)
    if finite.all() and (values == np.rint(values)).all() and (np.abs(values) < _EXACT).all():
        return values.astype(int).tolist()
    later = np.arange(len(values)) >= len(values) // 2
    with np.errstate(over="ignore", divide="ignore"):  # the range of the largest floats is infinite
        ranges = [float(np.ptp(part)) for part in (values[later & finite], values[finite]) if part.size]
        spread = next((one for one in ranges if one > 0), 0.0)
        ratio = np.abs(values[finite]).max(initial=0.0) / np.float64(spread or math.nan)
        digits = np.nan_to_num(4 + np.ceil(np.log10(ratio)), nan=_MAX_DIGITS).clip(_DIGITS, _MAX_DIGITS)
    rounded = [float(f"{value:.{digits:.0f}g}") for value in values.tolist()]
    return [value if math.isfinite(value) else None for value in rounded]
