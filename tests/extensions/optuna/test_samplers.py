"""The samplers and pruners of conf/hydra/sweeper, and what TPE gains over random search."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searches import OBJECTIVE, PRUNERS, SAMPLERS, space_of

from hydrant.extensions.optuna.trials import Search, Trials, check_parts


def test_every_option_is_a_sampler_or_pruner_with_its_arguments() -> None:
    space = space_of("a=0,1")
    for sampler in SAMPLERS.values():
        check_parts(sampler, PRUNERS["none"], space)
    for pruner in PRUNERS.values():
        check_parts(SAMPLERS["random"], pruner, space)


def quadratic(params: Mapping[str, Any]) -> float:
    """-log10 of the loss after 100 noisy updates by momentum SGD on a quadratic of condition number 1000."""
    curvatures, x, velocity = np.logspace(-3, 0, 50), np.ones(50), np.zeros(50)
    noise = np.random.default_rng(0).normal(0, 0.03, (100, 50))
    decays = {
        "constant": lambda t: 1.0,
        "linear": lambda t: 1 - t,
        "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    }
    for n in range(100):
        velocity = params["momentum"] * velocity + curvatures * x + noise[n]
        x = np.clip(x - params["lr"] * decays[params["scheduler"]](n / 100) * velocity, -1e6, 1e6)
    return -math.log10(float(curvatures @ x**2) / 2)


def best_of_search(sampler: str, seed: int, folder: Path, num_trials: int) -> float:
    words = ("lr=tag(log,interval(1e-3,10))", "momentum=interval(0,0.99)", "scheduler=constant,linear,cosine")
    node = {**SAMPLERS[sampler], "seed": seed}
    trials = Trials(folder, Search(space_of(*words), [OBJECTIVE], node, PRUNERS["none"]))
    for _ in range(num_trials):
        trial = trials.ask()
        trials.tell(trial.number, [quadratic(trial.params)])
    return float(trials.best()[0].values[0])


@pytest.mark.slow
def test_tpe_beats_random_search_on_the_same_budget(tmp_path: Path) -> None:
    """In the median over the seeds 0 to 19, with 30 trials each; docs/guides/optuna.md has the numbers."""
    best: dict[str, list[float]] = {"tpe": [], "random": []}
    for sampler, values in best.items():
        for seed in range(20):
            folder = tmp_path / f"{sampler}_{seed}"
            folder.mkdir()
            values.append(best_of_search(sampler, seed, folder, num_trials=30))
    better = sum(tpe > other for tpe, other in zip(best["tpe"], best["random"], strict=True))
    print({name: float(np.median(values)) for name, values in best.items()}, better)
    assert np.median(best["tpe"]) > np.median(best["random"])
    assert better >= 15  # of 20: as good a count by chance has a probability of 0.02
