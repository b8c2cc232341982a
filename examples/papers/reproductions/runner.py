"""Run the sweeps of a reproduction, and read them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.papers.reproductions.finding import Row
from examples.papers.reproductions.table import Reproduction
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.sources import read_runs_by_path
from hydrant.files.on_disk import replace_file, write_json
from hydrant.files.read_file import read_json

PROJECT = Path(__file__).resolve().parents[1]
ROOT = PROJECT.parents[1]
RESULTS = Path(__file__).with_name("results")


def sweeps(reproduction: Reproduction, *, miniature: bool) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name of each sweep and the words of `python train.py` that train it, in the order to run them."""
    kind = "miniature" if miniature else "paper"
    for part, words in reproduction.sweeps.items():
        name = f"{kind}_{reproduction.name}_{part}"
        given = [*words, *(reproduction.miniature if miniature else ())]
        by_key = {word.partition("=")[0]: word.format(kind=kind) for word in given}
        yield (
            name,
            [
                "--multirun",
                f"experiment={reproduction.experiment_name}",
                f"name={name}",
                "tracker=local",
                *by_key.values(),
            ],
        )


def train(reproduction: Reproduction, folder: Path, *, miniature: bool) -> None:
    """Train what has not been trained in `folder`/multirun, and record what it has cost.

    Raises:
        SystemExit: a sweep has failed or was interrupted. The same call continues it.
    """
    (folder / "multirun").mkdir(parents=True, exist_ok=True)
    for name, words in sweeps(reproduction, miniature=miniature):
        print(shlex.join(["python", "train.py", *words]), flush=True)
        status, answer = call(words, folder)
        cost = _cost_file(folder, name)
        write_json(cost, max(_seconds(cost), answer.get("processor_seconds", 0.0)))  # of all starts
        if status:
            raise SystemExit(status)  # it has said why


def call(words: Sequence[str], folder: Path) -> tuple[int, Mapping[str, Any]]:
    """Run `hydrant train` with the options of this project; return its exit status and its answer."""
    command = [sys.executable, str(ROOT / "train.py"), *words, "--json"]
    variables = {
        "HYDRANT_CONF": str(PROJECT / "conf"),
        "HYDRANT_ALLOW_TARGETS": ",".join(file.stem for file in PROJECT.glob("*.py")),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def _cost_file(folder: Path, name: str) -> Path:
    return folder / "multirun" / f"{name}.seconds.json"


def _seconds(file: Path) -> float:
    return read_json(file, float, "; delete it") or 0.0


def read(reproduction: Reproduction, folder: Path, *, miniature: bool) -> dict[str, Any]:
    """Return the runs and their cost in plain types."""
    names = [name for name, _ in sweeps(reproduction, miniature=miniature)]
    runs = [
        _row(run, reproduction, name.removeprefix(f"{name.partition('_')[0]}_{reproduction.name}_"))
        for name in names
        for run in read_runs_by_path([str(folder / "multirun" / name)])
    ]
    columns = list(runs[0])
    rows = sorted(list(run.values()) for run in runs)
    seconds = sum(_seconds(_cost_file(folder, name)) for name in names)
    return {"processor_seconds": round(seconds), "columns": columns, "runs": rows}


def _row(run: Run, reproduction: Reproduction, part: str) -> Row:
    def last(metric: str) -> float | None:
        values = run.series[metric].values if metric in run.series else [float("nan")]
        return None if values[-1] != values[-1] else round(float(values[-1]), 5)

    curves = {
        metric: [
            [int(update), round(float(value), 5)]
            for update, value in zip(run.series[metric].updates, run.series[metric].values, strict=True)
        ]
        for metric in reproduction.curves
        if metric in run.series
    }
    return {
        "part": part,
        **{key: run.config[key] for key in reproduction.keys},
        **({} if reproduction.target is None else {"updates": _updates_to(run, *reproduction.target)}),
        **{metric: last(metric) for metric in reproduction.metrics},
        **{f"{metric} curve": curves.get(metric, []) for metric in reproduction.curves},
    }


def _updates_to(run: Run, metric: str, value: float) -> float | None:
    """Return after how many updates a metric has fallen to a value, linear between its points; None if never."""
    series = run.series[metric]
    for n in range(1, len(series.values)):
        before, after = series.values[n - 1 : n + 1]
        if after <= value:
            share = (before - value) / (before - after)
            return round(
                float(series.updates[n - 1] + share * (series.updates[n] - series.updates[n - 1])), 1
            )
    return None


def rows_of(content: Mapping[str, Any]) -> list[Row]:
    """Return the runs of a result."""
    return [dict(zip(content["columns"], row, strict=True)) for row in content["runs"]]


def write(reproduction: Reproduction, content: Mapping[str, Any]) -> None:
    """Write a result, with one line for each run."""
    text = json.dumps(content, indent=1)
    lines = (json.dumps(row) for row in content["runs"])
    body = ",\n".join(f"  {line}" for line in lines)
    text = re.sub(r'"runs": \[.*\]', lambda _: f'"runs": [\n{body}\n ]', text, flags=re.DOTALL)
    RESULTS.mkdir(exist_ok=True)
    replace_file(RESULTS / f"{reproduction.name}.json", text + "\n")


def load(reproduction: Reproduction) -> dict[str, Any] | None:
    """Return the kept result of a reproduction; None if it has not been run."""
    if reproduction.kept is not None:
        return reproduction.kept()
    file = RESULTS / f"{reproduction.name}.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError as error:
        raise SystemExit(
            f"{file} is damaged ({error}); scripts/reproduce {reproduction.name} writes it again"
        ) from error
