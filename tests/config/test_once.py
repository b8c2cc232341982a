"""Hydra composes what is about to run once, and what was checked is what runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from checks import summary
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from hydrant import cli

TINY = ("tracker=local", "model.hidden=[8]", "duration=1", "eval_every=null", "save_every=null")


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words of every composition, as they come."""
    found: list[list[str]] = []
    compose: Callable[..., Any] = ConfigLoaderImpl._load_configuration_impl  # pyright: ignore[reportPrivateUsage]

    def noted(self: ConfigLoaderImpl, **options: Any) -> Any:
        found.append(options["overrides"])
        return compose(self, **options)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", noted)
    return found


def test_a_run_is_composed_once(workdir: Path, composed: list[list[str]]) -> None:
    assert cli.main(["train", *TINY, "name=once"]) == 0
    assert [set(words) for words in composed] == [{*TINY, "name=once"}]
    assert summary(workdir / "outputs" / "once")["status"] == "finished"


@pytest.mark.usefixtures("workdir")
def test_what_cannot_be_composed_is_told_as_it_is(
    composed: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", *TINY, "optimizer=adamv"]) == 2
    assert "adamw" in capsys.readouterr().err
    assert len(composed) == 2  # as a run, and as the sweep that it might have been


def test_the_jobs_of_a_sweep_are_composed_once_and_run_as_they_were_checked(
    workdir: Path, composed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a file that they are composed of changes between."""
    from hydra_plugins.hydrant_sweeper import GridSweeper

    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\noptimizer:\n  lr: 0.5\n")
    launch = GridSweeper._launch  # pyright: ignore[reportPrivateUsage]

    def edited(*arguments: Any) -> Any:
        file.write_text("# @package _global_\noptimizer:\n  lr: 0.7\n")
        return launch(*arguments)

    monkeypatch.setattr(GridSweeper, "_launch", edited)
    words = ("--config-dir", "conf", "--multirun", *TINY, "experiment=mine", "name=jobs", "seed=0,1")
    assert cli.main(["train", *words]) == 0
    assert len(composed) == 3  # the sweep itself and two jobs
    configs = [yaml.safe_load(path.read_text()) for path in workdir.glob("multirun/jobs/*/config.yaml")]
    assert sorted((config["seed"], config["optimizer"]["lr"]) for config in configs) == [(0, 0.5), (1, 0.5)]


def test_a_file_may_say_that_it_is_a_sweep(workdir: Path) -> None:
    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nhydra:\n  mode: MULTIRUN\n")
    words = ("--config-dir", "conf", *TINY, "experiment=mine", "name=jobs")
    assert cli.main(["train", *words, "seed=0,1"]) == 0
    assert len(list(workdir.glob("multirun/jobs/*/config.yaml"))) == 2
