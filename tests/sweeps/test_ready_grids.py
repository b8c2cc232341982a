"""The grids of conf/sweep."""

import json
import re
from pathlib import Path

import pytest
import yaml
from marks import each, slow
from repository import conf_files
from training_runs import run_command

from hydrant.config.check import check
from hydrant.config.compose import JobComposer, combinations, compose, composing, without_hydra
from hydrant.config.groups import option_path
from hydrant.sweeps.plan import sweep_progress

GRIDS = sorted(p.stem for p in conf_files("sweep/*.yaml").values() if "/hydra/sweeper" not in p.read_text())
EXPERIMENTS = sorted(
    name.removeprefix("experiment/").removesuffix(".yaml")
    for name, path in conf_files("experiment/**/*.yaml").items()
    if "\n  sweeper:" in path.read_text()
)
LARGEST = "optimizers_schedulers"


@pytest.mark.parametrize(
    "grid", [*slow(*each([LARGEST], "sweep")), *each((grid for grid in GRIDS if grid != LARGEST), "sweep")]
)
def test_every_job_of_a_ready_grid_is_valid(grid: str) -> None:
    text = option_path("sweep", grid).read_text()
    package, question = text.splitlines()[:2]
    assert package == "# @package _global_"
    assert re.fullmatch(rf"# .*[?.] {{4}}python train\.py --multirun sweep={grid}", question)
    params = yaml.safe_load(text)["hydra"]["sweeper"]["params"]
    jobs = combinations([f"{key}={values}" for key, values in params.items()])
    configs = [check(compose(job)) for job in jobs]
    assert len({json.dumps(config) for config in configs}) == len(jobs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("experiment", each(EXPERIMENTS, "experiment"))
def test_every_value_in_the_grid_of_an_experiment_is_valid(experiment: str) -> None:
    text = option_path("experiment", experiment).read_text()
    for key, values in yaml.safe_load(text)["hydra"]["sweeper"]["params"].items():
        jobs = combinations([f"{key}={values}"])
        with composing(words := [f"experiment={experiment}"]) as composer:
            job_composer = JobComposer(composer, composer.compose(words))
            configs = [check(without_hydra(job_composer.compose([*words, *job]))) for job in jobs]
        assert len({json.dumps(config) for config in configs}) == len(jobs) > 1


@pytest.mark.slow
@pytest.mark.parametrize("grid", each(GRIDS, "sweep"))
def test_a_ready_grid_runs(grid: str, tmp_path: Path) -> None:
    words = ("tracker=local", "duration=2", "log_every=1", "eval_every=2", "save_every=2",
             "model.hidden=[16]")  # fmt: skip
    swept = run_command("-m", f"sweep={grid}", *words, "name=grid", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    runs = sweep_progress(tmp_path / "multirun" / "grid")
    assert {run.state for run in runs} == {"finished"}
    assert all("sweep" not in run.choices for run in runs)
