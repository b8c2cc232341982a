"""The configs, their schema and the signatures of their targets agree."""

import inspect
import re
from itertools import zip_longest
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from marks import choosing, configs, each
from omegaconf import DictConfig

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import DURATIONS, GROUPS, BestMetric, TrainConfig, conf_dir, group_options
from hydrant.files.plain_values import accepts
from hydrant.safety.targets import locate, targets_of

APART = ("data", "model", "task")
"""Groups whose options need others of each other. One config holds an option of each other group."""
CHOICES = {group: [f"{group}={option}" for option in group_options()[group]] for group in GROUPS}
TOGETHER = [
    list(filter(None, row))
    for row in zip_longest(*(of for group, of in CHOICES.items() if group not in APART))
]
OVERLAYS = [f"{g}={option}" for g in ("experiment", "debug") for option in group_options().get(g, [])]
SHAPES = ("data.input_shape=[3]", "data.num_classes=2")
# Arguments of options that read the disk while they are composed, or need a name from the user.
ARGUMENTS = {
    "data=csv": ("data.train=train.csv", "data.target=price", *SHAPES),
    "data=dataset": ("data.train._target_=torch.nn.Identity", "data.val._target_=torch.nn.Identity", *SHAPES),
    "data=hugging_face": ("data.path=train", *SHAPES),
    "data=image_folder": ("data.num_classes=3",),
    "data=memmap": ("data.train=train", "data.val=val", *SHAPES),
    "data=stream": ("data.train._target_=torch.nn.Identity", "data.val._target_=torch.nn.Identity",
                    "data.num_samples=8", *SHAPES),
    "data=tensors": ("data.train=train.pt", "data.val=val.pt", *SHAPES),
    "model=gpt": ("data=tokens", "data.root=tokens", "data.vocab_size=257", "data.fingerprint=null"),
    "data=tokens": ("data.root=tokens", "data.vocab_size=257", "data.fingerprint=null"),
    "experiment=autoresearch": ("data.vocab_size=257", "data.fingerprint=null"),
    "scheduler=lambda": ("scheduler.fn._target_=torch.nn.Identity",),
    "scheduler=stepped": ("scheduler.fn._target_=torch.optim.lr_scheduler.ConstantLR",),
}  # fmt: skip


def composed(*overrides: str) -> DictConfig:
    return compose([*overrides, *(a for o in overrides for a in ARGUMENTS.get(o, ()))])


@pytest.mark.parametrize("choice", each(OVERLAYS))
def test_every_experiment_passes_the_checks(choice: str) -> None:
    assert check(composed(choice)).keys() == TrainConfig.__dataclass_fields__.keys()


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param(choices, marks=choosing(*choices))
        for choices in (*([choice] for group in APART for choice in CHOICES[group]), *TOGETHER)
    ],
    ids=" ".join,
)
def test_every_option_has_the_arguments_of_its_target(choices: list[str]) -> None:
    """`check` compares each node with its target's signature: unknown, missing and ill-typed arguments are errors."""
    config = check(composed(*choices))
    nodes = {group: config[group] for group in (choice.partition("=")[0] for choice in choices)}
    for key, path in targets_of(nodes):
        if not path.startswith("hydrant."):
            continue
        target, values = locate(path, key), _select(config, key.removesuffix("._target_"))
        for name, parameter in inspect.signature(target).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert name in values, f"{key}: only Python has the default of {name}; write it in the YAML"
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
        assert all(accepts(hints[name], value) for name, value in values.items() if name in hints)


def _select(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def test_train_yaml_and_the_schema_have_the_same_keys() -> None:
    plain = yaml.safe_load((conf_dir() / "train.yaml").read_text())
    chosen = {name for default in plain["defaults"] if isinstance(default, dict) for name in default}
    keys = (set(plain) - {"defaults", "hydra"}) | {name for name in chosen if name in GROUPS}
    assert keys == set(TrainConfig.__dataclass_fields__)
    assert set(plain["best"]) == set(BestMetric.__dataclass_fields__)
    assert {*DURATIONS, *GROUPS} <= keys


def test_every_key_of_train_yaml_has_a_comment() -> None:
    keys = (conf_dir() / "train.yaml").read_text().partition("\nname:")[2].partition("\nhydra:")[0]
    for line in f"name:{keys}".splitlines():
        if line.strip() and line != "best:":
            assert re.search(r"\S.* # \S+", line), f"no comment: {line}"


@pytest.mark.parametrize("path", configs())
def test_every_config_begins_with_a_description(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    described = rest[0] if first.startswith("# @package") else first
    assert re.match(r"# \S+", described)
