"""`tracker=[a,b]`: each option has a node of its own, and the first one is where it is without a list."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError

ONE = compose(["tracker=wandb"])


@pytest.mark.parametrize(
    "words", [["tracker=[wandb,tensorboard]"], ["tracker=wandb", "+tracker@trackers.tensorboard=tensorboard"]]
)
def test_each_option_keeps_its_own_keys(words: Sequence[str]) -> None:
    changed = ["tracker.project=study", "trackers.tensorboard.flush_seconds=1.5"]
    config = check(compose([*words, *changed]))
    assert config["tracker"] == {**ONE.tracker, "project": "study"}
    assert config["trackers"] == {
        "tensorboard": {**compose(["tracker=tensorboard"]).tracker, "flush_seconds": 1.5}
    }


def test_a_list_of_one_option_is_that_option() -> None:
    assert compose(["tracker=[wandb]"]) == ONE


def test_a_config_file_may_list_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "experiment" / "both.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\ndefaults:\n  - override /tracker: [tensorboard, local]\n")
    monkeypatch.setenv("HYDRANT_CONF", str(tmp_path))
    config = check(compose(["experiment=both", "tracker.flush_seconds=1.5"]))
    assert config["tracker"] == {**compose(["tracker=tensorboard"]).tracker, "flush_seconds": 1.5}
    assert config["trackers"] == {"local": compose(["tracker=local"]).tracker}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "tracker=[]",
            "tracker: needs one or more options, each once, not []; write tracker=[wandb,tensorboard]",
        ),
        (
            "tracker=[1,local]",
            "tracker: needs one or more options, each once, not [1,local]; write tracker=[wandb,tensorboard]",
        ),
        ("tracker=[local,local]", "tracker: needs one or more options, each once, not [local,local]"),
        ("optimizer=[adamw,sgd]", "optimizer: no option ['adamw', 'sgd']"),
    ],
)
def test_a_wrong_list_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([word])
    assert str(caught.value).startswith(message)
