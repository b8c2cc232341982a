"""The jobs of a sweep share what Hydra makes of the config files, and have the configs that plain Hydra composes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from hydrant.config.compose import ENTRY, register_resolvers
from hydrant.config.groups import conf_dir
from hydrant.config.shared_options import share_options

WORDS = (
    ["optimizer.lr=0.1"],
    ["optimizer.lr=0.2", "seed=3"],
    ["optimizer=sgd", "optimizer.lr=0.2"],
    ["optimizer=sgd", "seed=4", "++optimizer.dampening=0.5"],
    ["experiment=gpt_tiny", "model.width=32"],
    ["experiment=gpt_tiny"],
    ["+scheduler@schedules.weight_decay=linear", "seed=1"],
    ["+scheduler@schedules.weight_decay=linear", "seed=2", "~schedules.weight_decay.end_ratio"],
    ["optimizer.lr=0.3", "hydra.sweep.dir=elsewhere", "hydra/launcher=local"],
    ["optimizer.lr=0.3", "hydra/launcher=local", "hydra.launcher.num_jobs=3"],
    ["optimizer.lr=0.1"],
)


def composed(words: Sequence[str]) -> tuple[DictConfig, Any]:
    config = compose(ENTRY, overrides=list(words), return_hydra_config=True)
    return config, OmegaConf.to_container(config, resolve=False)


@pytest.fixture(autouse=True)
def hydra_app() -> Any:
    register_resolvers()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir()), job_name=ENTRY):
        yield


def test_shared_options_give_the_configs_of_plain_hydra() -> None:
    expected = [composed(words)[1] for words in WORDS]
    with share_options():
        assert [composed(words)[1] for words in WORDS] == expected
        for words, content in zip(reversed(WORDS), reversed(expected), strict=True):
            config, found = composed(words)
            assert found == content
            config.seed = 99  # a change of one config reaches no other
            config.optimizer.lr = 99.0
    assert [composed(words)[1] for words in WORDS] == expected


def test_files_are_merged_once_for_each_choice_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, make = list[Any](), config_loader_impl.create_defaults_list

    def counted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return make(*arguments, **named)

    monkeypatch.setattr(config_loader_impl, "create_defaults_list", counted)
    with share_options():
        for words in [[f"optimizer={name}", f"seed={seed}"] for seed in range(3) for name in ("sgd", "adam")]:
            composed(words)
    assert len(calls) == 2


@pytest.mark.parametrize("words", [["optimizer=adamv"], ["+seed=1"], ["nothing=1"], ["~optimizer=sgd"]])
def test_errors_are_those_of_plain_hydra(words: list[str]) -> None:
    with pytest.raises(HydraException) as expected:
        composed(words)
    with share_options():
        composed([])
        for _ in range(2):
            with pytest.raises(HydraException) as found:
                composed(words)
            assert str(found.value) == str(expected.value)


def test_a_file_that_changes_in_between_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\nseed: 5\n")
    words = [f"hydra.searchpath=[file://{tmp_path / 'conf'}]", "experiment=mine"]
    with share_options():
        assert composed(words)[0].seed == 5
        file.write_text("# @package _global_\nseed: 6\n")
        assert composed([*words, "optimizer.lr=1"])[0].seed == 5
    assert composed(words)[0].seed == 6
