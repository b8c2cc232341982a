"""Run folders written by tests, with known results, for `hydrant compare`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import yaml

from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps.plan import write_plan

if TYPE_CHECKING:
    from hydrant.extensions.compare.comparison import Comparison
    from hydrant.extensions.compare.groups import Group
    from hydrant.extensions.compare.run import Run

CONFIG: dict[str, Any] = {
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.001},
    "scheduler": {"_target_": "hydrant.schedules.cosine", "warmup": 0},
    "data": {"_target_": "hydrant.data.digits", "num_classes": 10, "root": "here"},
    "task": {"_target_": "hydrant.tasks.Classification"},
    "model": {"_target_": "hydrant.models.MLP", "width": 64},
    "tracker": {"_target_": "hydrant.trackers.NullTracker"},
    "name": None,
    "seed": 0,
    "duration": "10ep",
    "global_batch_size": 64,
    "best": {"metric": "val/accuracy", "mode": "max"},
}
CHOICES = {
    "optimizer": "adamw",
    "scheduler": "cosine",
    "data": "digits",
    "task": "classification",
    "tracker": "local",
    "experiment": None,
    "debug": None,
}
TARGETS = {"adamw": "torch.optim.AdamW", "sgd": "torch.optim.SGD", "lion": "hydrant.optimizers.Lion"}
ENVIRONMENT = {
    "python": "3.11.7", "torch": "2.15.0", "cuda": None, "gpu": None, "git_commit": "a" * 40, "git_dirty": False
}  # fmt: skip


def comparing(*words: Path | str, **options: Any) -> Comparison:
    """Return the comparison of these runs with the options of a `Question`."""
    from hydrant.extensions.compare.comparison import compare
    from hydrant.extensions.compare.sources import Question, read_runs

    question = Question(**options)
    return compare(read_runs([str(word) for word in words], question.varied), question)


def write_run(
    folder: Path,
    overrides: Mapping[str, Any],
    final: float | None,
    *,
    status: str = "finished",
    environment: Mapping[str, Any] = ENVIRONMENT,
    error: str = "",
    num_rows: int = 5,
    total_updates: int = 100,
    values: Sequence[float | None] | None = None,
    updates_per_second: float = 100.0,
    began: float = 1.7e9,
    data_files: Mapping[str, str] | None = None,
    end_reason: str | None = None,
) -> Path:
    """Write a run whose metric approaches `final`, or has `values` at equal distances from update 0 to the last."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in CONFIG.items()}
    choices = dict(CHOICES)
    for key, value in overrides.items():
        if key in choices:
            choices[key] = value
            if key in config:
                config[key]["_target_"] = TARGETS.get(value, value)
            continue
        *path, last = key.split(".")
        node = config
        for name in path:
            node = node[name]
        node[last] = value
    if values is None:
        growth = 1 - np.exp(-5 * np.arange(num_rows) / max(num_rows - 1, 1))
        values = [None] * num_rows if final is None else [*(final * growth[:-1]).tolist(), final]
    updates = np.linspace(0, total_updates, len(values)).astype(int).tolist()
    (folder / ".hydra").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / ".hydra" / "overrides.yaml").write_text(
        yaml.safe_dump([f"{k}={v}" for k, v in overrides.items()])
    )
    (folder / ".hydra" / "hydra.yaml").write_text(
        yaml.safe_dump({"hydra": {"runtime": {"choices": choices}}})
    )
    rows = [
        json.dumps(_row(u, v, total_updates, updates_per_second, config["optimizer"]["lr"], began))
        for u, v in zip(updates, values, strict=True)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    summary = {
        "status": status,
        "num_updates": updates[-1],
        "total_updates": total_updates,
        "environment": dict(environment),
        "perf": {"updates_per_second": updates_per_second, "peak_memory_gib": None},
        "compile": {"graphs": 0, "graph_breaks": 0, "recompiles": 0, "seconds": 0.0},
        "error": {"type": "NonFiniteError", "message": error} if error else None,
        "data_files": dict(data_files or {}),
        **({} if end_reason is None else {"end_reason": end_reason}),
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_study_record(folder: Path, contenders: Sequence[str], **protocol: Any) -> None:
    """Write study.json of a study of optimizers, without tuning, whose runs are in the folder."""
    fixed = {
        "contenders": {name: [f"optimizer={name}"] for name in contenders}, "tuning": {}, "metric": "val/accuracy",
        "tuning_metric": None, "mode": "max", "alpha": 0.05, "power": 0.8, "min_difference": None,
        "first_fresh_seed": 1, "max_seeds": 20, "budget": {},
    }  # fmt: skip
    cost = {"wall_seconds": 1.0, "cpu_seconds": 1.0, "num_starts": 1, "as_of": 1.0}
    content = {
        "is_running": False,
        "verdict": {"ended_by": None, "seeds_needed": None},
        "protocol": fixed | protocol,
        "cost": cost,
    }
    (folder / "study.json").write_text(json.dumps(content))


def _row(
    num_updates: int, value: float | None, total: int, rate: float, lr: float, began: float
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "num_updates": num_updates,
        "epoch": num_updates / 10,
        "time": began + num_updates / rate,
    }
    row |= {"val/accuracy": value, "val/loss": None if value is None else 1 - value}
    if num_updates:
        row |= {
            "train/loss": None if value is None else 1.1 - value,
            "optim/lr": lr * (1 + math.cos(math.pi * num_updates / total)) / 2,
            "perf/updates_per_second": rate,
        }
    return row


SEEDS = range(5)
MEANS = {("adamw", "cosine"): 0.95, ("adamw", "wsd"): 0.93, ("sgd", "cosine"): 0.90, ("lion", "wsd"): 0.97}
"""The mean result of the runs of each cell; (sgd, wsd) and (lion, cosine) have no runs."""

INCOMPLETE = ("lion", "wsd")
"""The cell with the best mean, where two runs failed."""


def planted_results() -> dict[tuple[str, str], list[float]]:
    """Return the last accuracy of each run by cell and seed. The runs of a seed share a part of their noise."""
    noise = np.random.default_rng(0)
    shared = noise.normal(0, 0.004, len(SEEDS))
    return {
        cell: [
            round(mean + float(s + n), 6)
            for s, n in zip(shared, noise.normal(0, 0.002, len(SEEDS)), strict=True)
        ]
        for cell, mean in MEANS.items()
    }


def expected_results(cell: tuple[str, str]) -> dict[str, float]:
    """Return the results of a cell by seed, for the runs that finished."""
    excluded = {INCOMPLETE: {1, 3}, ("sgd", "cosine"): {4}}.get(cell, set())
    return {str(seed): value for seed, value in enumerate(planted_results()[cell]) if seed not in excluded}


def group_of(comparison: Comparison, optimizer: str, scheduler: str) -> Group:
    return next(g for g in comparison.groups if g.labels == {"optimizer": optimizer, "scheduler": scheduler})


def warning_texts(comparison: Comparison) -> str:
    return "\n".join(warning.text for warning in comparison.warnings)


def write_planted(sweep: Path) -> Path:
    """Write four of six cells of a grid with five seeds: two runs failed, one is missing, one has another commit."""
    jobs = [(optimizer, seed) for optimizer in ("adamw", "sgd") for seed in SEEDS]  # of the newest command
    for (optimizer, scheduler), results in planted_results().items():
        for seed, final in zip(SEEDS, results, strict=True):
            overrides = {"optimizer": optimizer, "scheduler": scheduler, "seed": seed}
            folder = sweep / f"optimizer-{optimizer}_scheduler-{scheduler}_seed-{seed}"
            options: dict[str, Any] = {}
            if (optimizer, scheduler) == INCOMPLETE and seed in (1, 3):
                options = {
                    "status": "failed",
                    "error": "train/loss became NaN or infinite",
                    "total_updates": 100,
                }
                final = None
            if (optimizer, scheduler, seed) == ("sgd", "cosine", 4):
                continue
            if (optimizer, scheduler, seed) == ("adamw", "wsd", 2):
                options = {"environment": ENVIRONMENT | {"git_commit": "b" * 40}}
            write_run(folder, overrides, final, **options)
    write_plan(sweep, SweepPlan(0.0, [planned(optimizer, seed) for optimizer, seed in jobs]))
    return sweep


def planned(optimizer: str, seed: int) -> PlannedJob:
    words = [f"optimizer={optimizer}", "scheduler=cosine", f"seed={seed}"]
    return PlannedJob("_".join(word.replace("=", "-") for word in words), ["name=planted", *words])


def runs_of(results: npt.NDArray[np.float64], factors: Sequence[str]) -> list[Run]:
    """Return the runs of one sweep: results (values of each factor, ..., seeds)."""
    from hydrant.extensions.compare.run import Run, Series

    runs: list[Run] = []
    for place in np.ndindex(*results.shape):
        config = {key: f"{key}{n}" for key, n in zip(factors, place, strict=False)} | {"seed": place[-1]}
        series = {"val/accuracy": Series(np.array([100.0]), np.array([float(results[place])]))}
        runs.append(Run(" ".join(map(str, config.values())), "finished", config, {}, {}, series))
    return runs


def many_runs(num_runs: int = 200, num_points: int = 2000) -> list[Run]:
    """Return many runs with noisy curves."""
    noise, updates = np.random.default_rng(0), 20.0 * np.arange(1, num_points + 1)
    from hydrant.extensions.compare.run import Run, Series

    runs: list[Run] = []
    for n in range(num_runs):
        config = {
            "optimizer": ("adamw", "sgd", "lion")[n % 3],
            "scheduler": ("cosine", "wsd")[n // 3 % 2],
            "optimizer.lr": (0.001, 0.01, 0.1)[n // 6 % 3],
            "seed": n // 18,
            "global_batch_size": 64,
        }
        growth = 0.9 + 0.05 * noise.random() - 0.8 * np.exp(-5 * np.arange(num_points) / num_points)
        values = {
            "val/accuracy": growth + noise.normal(0, 0.01, num_points),
            "train/loss": 1 - growth + noise.normal(0, 0.02, num_points),
            "optim/lr": config["optimizer.lr"] * np.cos(np.arange(num_points) / num_points),
            "perf/updates_per_second": noise.uniform(50, 150, num_points),
        }
        series = {key: Series(updates, metric) for key, metric in values.items()}
        runs.append(Run(f"run-{n:03}", "finished", config, {}, {"num_updates": updates[-1]}, series))
    return runs
