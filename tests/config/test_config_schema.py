"""The configs, their schema and the code they configure say the same."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from hydrant import cli
from hydrant.clock import Clock
from hydrant.config import check, compose, conf_dir
from hydrant.config.compose import run_folder
from hydrant.config.hints import accepts
from hydrant.config.schema import DURATIONS, GROUPS, NOT_NEGATIVE, POSITIVE, Best, TrainConfig
from hydrant.config.targets import locate, targets_of
from hydrant.options import group_options

PARTS = [f"{group}={option}" for group in GROUPS for option in group_options()[group]]
OVERLAYS = [
    f"{group}={option}" for group in ("experiment", "debug") for option in group_options().get(group, [])
]
# Options that read the disk while they are composed, or wait for a name of the user's.
ARGUMENTS = {
    "data=image_folder": ("data.num_classes=3",),
    "scheduler=lambda": ("scheduler.fn._target_=torch.nn.Identity",),
    "scheduler=stepped": ("scheduler._target_=torch.optim.lr_scheduler.ConstantLR",),
}


def composed(*overrides: str) -> DictConfig:
    return compose([*overrides, *(a for o in overrides for a in ARGUMENTS.get(o, ()))])


@pytest.mark.parametrize("choice", OVERLAYS)
def test_every_experiment_is_a_config_that_could_run(choice: str) -> None:
    assert check(composed(choice)).keys() == TrainConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize("choice", PARTS)
def test_every_option_says_what_its_target_takes(choice: str) -> None:
    """`check` binds each target to its signature: unknown, missing and ill-typed arguments are errors."""
    group, config = choice.partition("=")[0], check(composed(choice))
    for key, path in targets_of({group: config[group]}):
        if not path.startswith("hydrant."):
            continue
        target, stated = locate(path, key), _select(config, key.removesuffix("._target_"))
        for name, parameter in inspect.signature(target).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert name in stated, f"{key}: the default of {name} lives in Python alone"
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
        assert all(accepts(hints[name], value) for name, value in stated.items() if name in hints)


def _select(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def test_train_yaml_and_the_schema_have_the_same_keys() -> None:
    plain = yaml.safe_load((conf_dir() / "train.yaml").read_text())
    chosen = {name for default in plain["defaults"] if isinstance(default, dict) for name in default}
    keys = (set(plain) - {"defaults", "hydra"}) | {name for name in chosen if name in GROUPS}
    assert keys == set(TrainConfig.__dataclass_fields__)
    assert set(plain["best"]) == set(Best.__dataclass_fields__)
    assert {*DURATIONS, *GROUPS, *POSITIVE, *NOT_NEGATIVE} <= keys


def test_every_key_of_train_yaml_is_explained_where_it_stands() -> None:
    own = (conf_dir() / "train.yaml").read_text().partition("\nname:")[2].partition("\nhydra:")[0]
    for line in f"name:{own}".splitlines():
        if line.strip() and line != "best:":
            assert re.search(r"\S.* # \S+", line), f"no comment: {line}"


@pytest.mark.parametrize(
    "path", sorted(conf_dir().rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_config_begins_with_what_it_is(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    described = rest[0] if first.startswith("# @package") else first
    assert re.match(r"# \S+", described)


def test_the_command_line_wins_over_experiments_over_groups_over_train_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`_self_` first in train.yaml: what is composed later has the last word."""
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


def test_a_number_may_be_a_name() -> None:
    assert check(compose(["name=1"]))["name"] == "1"
    assert check(compose(["name=1.5"]))["name"] == "1.5"
    assert run_folder("outputs", "1") == "outputs/1"


def test_checking_changes_nothing_else() -> None:
    config = compose(["max_grad_norm=1", "duration=2ep", "eval_every=null"])
    resolved = check(config)
    assert (resolved["max_grad_norm"], resolved["duration"], resolved["eval_every"]) == (1, "2ep", None)
    assert resolved == OmegaConf.to_container(config, resolve=True)
    assert check(OmegaConf.create(resolved)) == resolved
    assert check(OmegaConf.create(yaml.safe_load(yaml.safe_dump(resolved)))) == resolved


def test_durations_are_what_the_clock_reads() -> None:
    assert Clock.start("2ep", num_samples=100, global_batch_size=64).total_updates == 4


def test_composing_imports_nothing_slow() -> None:
    modules = ["cli", "train", "config", "config.arguments", "config.check"]
    plugins = ", ".join(f"hydra_plugins.hydrant_{name}" for name in ("optuna", "searchpath", "sweeper"))
    code = (
        f"import sys, {', '.join(f'hydrant.{module}' for module in modules)}, {plugins}\n"
        "from hydrant.config import compose\n"
        "compose(['optimizer=timm', 'model=timm', 'tracker=wandb'])\n"
        "slow = ('torch', 'torchvision', 'timm', 'wandb', 'matplotlib', 'optuna', 'sklearn')\n"
        "print([module for module in slow if module in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert ast.literal_eval(run.stdout) == []


def test_a_conf_folder_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRANT_CONF", "/nowhere/conf")
    assert cli.main(["train", "--cfg", "job"]) == 2
    assert "HYDRANT_CONF: /nowhere/conf is no folder" in capsys.readouterr().err
