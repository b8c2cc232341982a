"""The completions from the conf files are those of Hydra."""

import contextlib
from itertools import zip_longest
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from hydrant import cli
from hydrant.config.compose import compose
from hydrant.config.groups import group_options
from hydrant.extensions.editor.completion import completions

PLACED = {"model=two", "task=distillation", "scheduler=product", "scheduler=sequential", "optimizer=sam"}
"""Options that have keys of other groups too, which are not completed."""


def hydras_completions(config: DictConfig, node: str) -> list[str]:
    return sorted(
        f"{node}.{key}{'.' if OmegaConf.is_config(value) else '='}"
        for key, value in config[node].items_ex(resolve=False)
    )


@pytest.mark.slow
def test_the_keys_of_every_option_are_those_of_hydra() -> None:
    options = group_options()
    groups = [name.removesuffix(".") for name in completions([""]) if name.removesuffix(".") in options]
    assert len(groups) > 8
    for row in zip_longest(*(options[group] for group in groups)):
        overrides = [f"{group}={option}" for group, option in zip(groups, row, strict=True) if option]
        config = compose(overrides)
        for override in overrides:
            group = override.partition("=")[0]
            found = completions([*overrides, f"{group}."])
            expected = hydras_completions(config, group)
            assert {*found} <= {*expected}
            assert found == expected or override in PLACED, override


@pytest.mark.parametrize("node", ["best", "param_groups", "optimizer", "scheduler"])
def test_the_keys_without_overrides_are_those_of_hydra(node: str) -> None:
    assert completions([f"{node}."]) == hydras_completions(compose([]), node)


def test_a_top_level_node_ends_with_a_dot_and_a_value_with_an_equals_sign() -> None:
    assert completions(["best"]) == ["best."]
    assert completions(["seed"]) == ["seed="]
    assert completions(["optimizer"]) == ["optimizer.", "optimizer=", "optimizers."]


@pytest.mark.parametrize(
    "words", [["optimizer=adamw,sgd", "optimizer."], ["hydra.run."], ["optimizer.betas.0"], ["nothing."]]
)
def test_what_no_file_says_has_no_completions(words: list[str]) -> None:
    assert completions(words) == []


def test_an_experiment_chooses_the_option_whose_keys_are_completed() -> None:
    assert completions(["experiment=two_models", "optimizer.m"]) == ["optimizer.momentum="]


def test_the_users_option_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "conf" / "optimizer"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [adamw]\nextra: [1]\n")
    (folder / "adamw.yaml").write_text("_target_: torch.optim.AdamW\nlr: 1\n")
    assert completions(["optimizer=mine", "optimizer."]) == [
        "optimizer._target_=", "optimizer.extra.", "optimizer.lr=",
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["-sc", "-sc uninstall=fish", "-sc install=other", "train -sc"])
def test_an_unknown_request_for_completion_is_no_traceback(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMP_LINE", raising=False)
    with contextlib.suppress(SystemExit):
        assert cli.main(words.split()) in (0, 2)
