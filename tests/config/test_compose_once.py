"""Hydra composes each config once, and the config that was checked is the config that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from run_folders import summary

from hydrant import cli
from hydrant.config.hydra_main import run_hydra, train_flags
from hydrant.runs.log_setup import preserve_loggers

TINY = ("tracker=local", "model.hidden=[8]", "duration=1", "eval_every=null", "save_every=null")


@pytest.fixture
def compositions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The overrides of every composition, in order."""
    seen: list[list[str]] = []
    compose: Callable[..., Any] = ConfigLoaderImpl._load_configuration_impl  # pyright: ignore[reportPrivateUsage]

    def recorded(self: ConfigLoaderImpl, **options: Any) -> Any:
        seen.append(options["overrides"])
        return compose(self, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", recorded)
    return seen


@pytest.mark.parametrize(("words", "num_jobs"), [((), 1), (("--multirun", "+seed=0,1"), 2)])
def test_plain_hydra_still_composes_twice(
    words: tuple[str, ...], num_jobs: int, workdir: Path, compositions: list[list[str]]
) -> None:
    """Written against Hydra 1.3.8. When this fails, the patch of `hydrant.config.compose_once` may not be needed."""
    (workdir / "plain.yaml").write_text("defaults:\n  - override hydra/job_logging: disabled\n  - _self_\n")
    flags = train_flags().parse_intermixed_args([*words, "hydra/hydra_logging=disabled"])
    calls = list[Any]()
    with preserve_loggers():
        run_hydra(flags, calls.append, workdir, "plain")
    assert len(calls) == num_jobs
    num_configs = num_jobs + (num_jobs > 1)  # a sweep has a config of its own
    assert len(compositions) == 2 * num_configs, (
        f"Hydra {hydra.__version__} composed {num_configs} configs {len(compositions)} times; if that is once each, "
        "delete hydrant.config.compose_once and its use in hydrant.commands.train"
    )


def test_a_run_is_composed_once(workdir: Path, compositions: list[list[str]]) -> None:
    assert cli.main(["train", *TINY, "name=once"]) == 0
    assert [set(words) for words in compositions] == [{*TINY, "name=once"}]
    assert summary(workdir / "outputs" / "once")["status"] == "finished"


@pytest.mark.usefixtures("workdir")
def test_an_error_of_composing_is_reported(
    compositions: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *TINY, "optimizer=adamv"]) == 2
    assert "adamw" in capsys.readouterr().err
    assert len(compositions) == 2  # as a run, and as the sweep that it might be


def test_a_job_of_a_sweep_is_composed_once_and_runs_as_it_was_checked(
    workdir: Path, compositions: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config file that changes between check and start has no effect."""
    from hydrant.sweeps.grid import GridSweeper

    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\noptimizer:\n  lr: 0.5\n")
    launch = GridSweeper._launch  # pyright: ignore[reportPrivateUsage]

    def edit_and_launch(*arguments: Any) -> Any:
        file.write_text("# @package _global_\noptimizer:\n  lr: 0.7\n")
        return launch(*arguments)

    monkeypatch.setattr(GridSweeper, "_launch", edit_and_launch)
    words = ("--config-dir", "conf", "--multirun", *TINY, "experiment=mine", "name=jobs", "seed=0,1")
    assert cli.main(["train", *words]) == 0
    assert len(compositions) == 3  # the sweep and two jobs
    configs = [yaml.safe_load(path.read_text()) for path in workdir.glob("multirun/jobs/*/config.yaml")]
    assert sorted((config["seed"], config["optimizer"]["lr"]) for config in configs) == [(0, 0.5), (1, 0.5)]


def test_a_config_file_can_set_the_mode_to_multirun(workdir: Path) -> None:
    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n")
    words = ("--config-dir", "conf", *TINY, "experiment=mine", "name=jobs")
    assert cli.main(["train", *words, "seed=0,1"]) == 0
    assert len(list(workdir.glob("multirun/jobs/*/config.yaml"))) == 2
