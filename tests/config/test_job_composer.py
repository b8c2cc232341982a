"""Jobs that share what Hydra makes of the config files have the configs that Hydra composes for each anew."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.errors import HydraException
from hydra.types import RunMode
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from run_folders import summary
from shared_configs import QuickComposer, quick_hydra

from hydrant import cli
from hydrant.config import compose
from hydrant.config.compose import Composer, JobComposer, composing
from hydrant.config.error_messages import explain
from hydrant.config.file_source import LimitedFileSource
from hydrant.errors import ConfigError, HydrantError

TINY = ("tracker=local", "model.hidden=[8]", "duration=1", "eval_every=null", "save_every=null")
WORDS = (
    ["optimizer.lr=0.1"],
    ["optimizer.lr=0.2", "seed=3"],
    ["optimizer=sgd", "optimizer.lr=0.2", "model=convnet", "data=synthetic"],
    ["optimizer=sgd", "seed=4", "++optimizer.dampening=0.5"],
    ["experiment=vit_tiny_fake", "precision=bf16"],
    ["experiment=vit_tiny_fake"],
    ["+scheduler@schedules.weight_decay=linear", "seed=1"],
    ["+scheduler@schedules.weight_decay=linear", "seed=2", "~schedules.weight_decay.end_ratio"],
    ["optimizer.lr=0.3", "hydra.sweep.subdir=elsewhere"],
    ["optimizer.lr=0.1"],  # as the first
)


@pytest.fixture
def jobs() -> Iterator[JobComposer]:
    with composing() as composer:
        yield JobComposer(composer, sweep_of(composer))


def sweep_of(composer: Composer) -> DictConfig:
    words = ["hydra.job.config.override_dirname.exclude_keys=[seed]", "hydra.mode=MULTIRUN"]
    return composer.compose(words, RunMode.MULTIRUN)


def as_hydra_composes(jobs: JobComposer, words: Sequence[str]) -> DictConfig:
    return jobs._composer.loader.load_sweep_config(jobs._sweep, list(words))


def content(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def test_the_configs_are_those_of_hydra(jobs: JobComposer) -> None:
    expected = [content(as_hydra_composes(jobs, words)) for words in WORDS[:-1]]
    expected.append(expected[0])
    assert [content(jobs.compose(words)) for words in WORDS] == expected
    assert type(jobs._composer) is QuickComposer  # most tests of runs compose by it
    for words, one in zip(reversed(WORDS), reversed(expected), strict=True):
        config = jobs.compose(words)
        assert content(config) == one
        config.seed = 99  # a change of one config reaches no other
        config.optimizer.lr = 99.0


@pytest.mark.slow
def test_tests_compose_the_files_of_a_user_as_hydra_does(workdir: Path) -> None:
    for name, text in {
        "experiment/mine": "defaults: [{override /optimizer: mine}]\noptimizer: {lr: 0.3}\nnotes: a",
        "optimizer/mine": "defaults: [sgd, _self_]\nmomentum: 0.5",
        "model/mlp": "defaults: [convnet]\nwidths: [3]",  # instead of Hydrant's
    }.items():
        path = workdir / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with composing() as composer:
        for words in (["experiment=mine"], ["experiment=mine", "optimizer=adam", "seed=1"], [], WORDS[1]):
            expected, found = (
                content(kind(composer.name, []).load(words, RunMode.RUN))
                for kind in (Composer, QuickComposer)
            )
            assert found == expected


KEYS = (
    "seed", "notes", "optimizer.lr", "optimizer.betas", "model.hidden", "model.hidden.0", "schedules", "schedules.x",
    "optimizer", "scheduler", "hooks", "best.metric", "data.x.y", "optimizers.a", "nothing", "best", "tags",
)  # fmt: skip
VALUES = (
    "0.1", "1e-3", "[]", "[1,2]", "{a: 1}", "{a: {b: [1]}}", "null", "true", "text", "'1'", "${seed}", "${.x}", "???",
    "", "sgd", "adamw", "[sgd]", "'${oc.env:HOME}'", "${hydra:job.name}",
)  # fmt: skip
words = st.builds(
    "{}{}={}".format, st.sampled_from(["", "", "", "+", "++"]), st.sampled_from(KEYS), st.sampled_from(VALUES)
)
deletions = st.sampled_from(KEYS).map(lambda key: f"~{key}")


CASES = list[list[str]]()


@settings(max_examples=20, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(st.lists(words | words | deletions, max_size=4))
def draw(overrides: list[str]) -> None:
    CASES.append(overrides)


@pytest.mark.slow
def test_random_overrides_give_what_hydra_gives(jobs: JobComposer) -> None:
    """Or its errors."""
    draw()
    for overrides in CASES:
        try:
            with quick_hydra():
                expected: Any = content(as_hydra_composes(jobs, overrides))
        except Exception as error:  # Hydra does not check everything
            expected = error
        try:
            found: Any = content(jobs.compose(overrides))
        except HydraException as error:
            expected, found = str(expected), str(error)
        except HydrantError:  # what Hydrant checks first
            continue
        assert found == expected, overrides
    assert len(CASES) >= 20


def test_errors_are_those_of_hydra(jobs: JobComposer) -> None:
    jobs.compose([])
    for drawn in (["optimizer=adamv"], ["+seed=1"], ["nothing=1"], ["~nothing"], ["seed=1,2"]):
        with pytest.raises(HydraException) as expected, quick_hydra():
            as_hydra_composes(jobs, drawn)
        for _ in range(2):
            with pytest.raises(ConfigError) as found:
                jobs.compose(drawn)
            assert str(found.value) == str(explain(expected.value))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The config files that have been read, without what tests share."""
    paths, load = list[str](), LimitedFileSource.load_config

    def counted(self: LimitedFileSource, config_path: str) -> Any:
        paths.append(config_path)
        return load(self, config_path)

    monkeypatch.setattr(LimitedFileSource, "load_config", counted)
    monkeypatch.setattr(compose, "Composer", Composer)
    return paths


def test_files_are_read_once_for_each_choice_of_options(loaded: list[str], jobs: JobComposer) -> None:
    for seed in range(3):
        for name in ("sgd", "adam"):
            jobs.compose([f"optimizer={name}", f"seed={seed}"])
    assert loaded.count("optimizer/sgd") == loaded.count("optimizer/adam") == 1


def test_a_run_is_composed_once(loaded: list[str], workdir: Path) -> None:
    assert cli.main(["train", *TINY, "name=once"]) == 0
    assert loaded.count("optimizer/adamw") == 1
    assert summary(workdir / "outputs" / "once")["status"] == "finished"


def test_a_job_runs_as_it_was_checked(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A config file that changes between check and start has no effect."""
    from hydrant.sweeps.grid import GridSweeper

    file = workdir / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\noptimizer:\n  lr: 0.5\n")
    launch = GridSweeper._launch

    def edit_and_launch(*arguments: Any) -> Any:
        file.write_text("# @package _global_\noptimizer:\n  lr: 0.7\n")
        return launch(*arguments)

    monkeypatch.setattr(GridSweeper, "_launch", edit_and_launch)
    words = ("--multirun", *TINY, "experiment=mine", "name=jobs", "seed=0,1")
    assert cli.main(["train", *words]) == 0
    configs = [yaml.safe_load(path.read_text()) for path in workdir.glob("multirun/jobs/*/config.yaml")]
    assert sorted((config["seed"], config["optimizer"]["lr"]) for config in configs) == [(0, 0.5), (1, 0.5)]


def test_hydras_loader_has_what_is_used_of_it() -> None:
    """Public methods of a public class, in each version of Hydra."""
    used = ("load_configuration", "load_sweep_config", "get_group_options", "compute_defaults_list")
    assert set(used) <= ConfigLoader.__abstractmethods__
