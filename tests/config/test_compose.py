"""Composed configs, and the run folders that their resolvers make."""

from pathlib import Path
from typing import Any

import pytest
from hydra.types import RunMode
from marks import of_extension, slow
from omegaconf import OmegaConf
from processes import modules_after

from hydrant.config import compose as compose_module
from hydrant.config.compose import JobComposer, compose, composing


def test_the_command_line_wins_over_experiments_over_groups_over_train_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_self_` is first in train.yaml, so what is composed later wins."""
    for name, text in {
        "optimizer/mine": "defaults: [adamw]\nlr: 0.2",
        "experiment/mine": (
            "# @package _global_\ndefaults:\n  - override /optimizer: mine\nseed: 5\noptimizer: {lr: 0.3}"
        ),
        "debug/mine": "# @package _global_\nseed: 6",
        "model/loud": "# @package _global_\ndefaults: [mlp@model]\nseed: 4",
    }.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)

    def seed_and_lr(*overrides: str) -> tuple[int, float]:
        config = compose(overrides)
        return config.seed, config.optimizer.lr

    assert seed_and_lr() == (0, 1e-3)
    assert seed_and_lr("model=loud") == (4, 1e-3)
    assert seed_and_lr("optimizer=mine") == (0, 0.2)
    assert seed_and_lr("experiment=mine", "model=loud") == (5, 0.3)
    assert seed_and_lr("debug=mine", "experiment=mine") == (6, 0.3)
    assert seed_and_lr("seed=9", "optimizer.lr=0.9", "debug=mine", "experiment=mine") == (9, 0.9)


EXPERIMENT = """# @package _global_
defaults:
  - override /optimizer: sgd
  - override /scheduler: wsd
optimizer: {lr: 0.5, momentum: 0.8}
scheduler: {warmup: 10%, decay: 30%}
"""


@pytest.mark.parametrize(
    ("text", "words", "expected", "gone"),
    [
        (EXPERIMENT, [], {"optimizer.momentum": 0.8, "scheduler.decay": "30%"}, ""),
        (EXPERIMENT, ["optimizer=adam"], {"optimizer.lr": 1e-3, "optimizer.momentum": None},
         "optimizer.lr=0.5, optimizer.momentum=0.8"),
        ("optimizer: {lr: 2e-3}", ["optimizer=sgd"], {"optimizer.lr": 0.1}, "optimizer.lr=0.002"),
        ("optimizer: {momentum: 0.8}", ["optimizer=sgd"], {"optimizer.momentum": 0.8}, ""),
        ("optimizer: {momentun: 0.8}", ["optimizer=sgd"], {"optimizer.momentun": 0.8}, ""),
        *slow(
            ("defaults: [base, {override /optimizer: sgd}]\noptimizer: {lr: 0.5}", ["optimizer=adam"],
             {"optimizer.lr": 1e-3}, "optimizer.lr=0.5"),
            ("optimizer: {lr: 2e-3}", ["optimizer=adam"], {"optimizer.lr": 2e-3}, ""),
            (EXPERIMENT, ["optimizer=adam", "optimizer.lr=0.2"], {"optimizer.lr": 0.2}, "optimizer.momentum=0.8"),
            (EXPERIMENT, ["scheduler=cosine"], {"scheduler.warmup": "10%", "scheduler.decay": None},
             "scheduler.decay='30%'"),
        ),
        *of_extension(
            ("tracker: {project: mine}", ["debug=smoke"], {"tracker.project": None}, "tracker.project='mine'")
        ),
        ("defaults: [/model@task.teacher.model: timm]\ntask: {teacher: {model: {name: x}}}",
         ["model@task.teacher.model=mlp"], {"task.teacher.model.name": None}, "task.teacher.model.name='x'"),
    ],
)  # fmt: skip
def test_what_an_experiment_sets_for_its_option_goes_with_it(
    text: str, words: list[str], expected: dict[str, Any], gone: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It stays where the other option has the same default; a name that no option has is checked as it is."""
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text if text == EXPERIMENT else f"# @package _global_\n{text}\n")
    file.with_name("base.yaml").write_text("# @package _global_\noptimizer: {lr: 0.7}\n")
    monkeypatch.chdir(tmp_path)
    compose_module._print.cache_clear()
    with composing(["experiment=mine", *words]) as composer:
        single = composer.compose(composer.words)
        job = JobComposer(composer, composer.compose(["experiment=mine"], RunMode.MULTIRUN)).compose(
            composer.words
        )
    for config in (single, job):
        assert {key: OmegaConf.select(config, key) for key in expected} == expected
    printed = capsys.readouterr().err
    assert printed.count("\n") == bool(gone)
    verb = "are" if ", " in gone else "is"
    assert f", the experiment's {gone} {verb} left out, because its" in printed or not gone


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["scheduler=exponential"], {"gamma": None, "end_ratio": 0.01}),
        (["scheduler=exponential", "scheduler.gamma=0.99"], {"gamma": 0.99, "end_ratio": None}),
        (
            ["scheduler=exponential", "scheduler.gamma=0.9", "scheduler.end_ratio=1"],
            {"gamma": 0.9, "end_ratio": 1},
        ),
        *of_extension(
            (["scheduler=cosine_restarts"], {"num_cycles": None, "first_cycle": "25%"}),
            (["scheduler=cosine_restarts", "scheduler.num_cycles=3"], {"num_cycles": 3, "first_cycle": None}),
        ),
    ],
)
def test_the_default_of_a_key_yields_to_one_that_excludes_it(
    overrides: list[str], expected: dict[str, Any]
) -> None:
    nested = [word.replace("scheduler=", "+scheduler@schedules.betas.0=").replace("scheduler.", "schedules.betas.0.")
              for word in overrides]  # fmt: skip
    config = compose([*overrides, *nested])
    for node in (config.scheduler, config.schedules.betas["0"]):
        assert {key: node[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("sweepers", "tracker"),
    [("", "local"), *of_extension(("extensions.optuna.sweeper extensions.study.sweeper", "wandb"))],
)
def test_composing_imports_nothing_slow(sweepers: str, tracker: str) -> None:
    modules = f"cli commands.train config.command_line config.check training trackers {sweepers}".split()
    code = (
        f"import {', '.join(f'hydrant.{module}' for module in modules)}, hydra_plugins.hydrant_searchpath\n"
        "from hydrant.config.compose import compose\n"
        f"compose(['optimizer=adamw', 'model=timm', 'tracker={tracker}'])"
    )
    slow = {"torch", "torchvision", "timm", "wandb", "matplotlib", "optuna", "sklearn"}
    assert slow.isdisjoint(modules_after(code))
