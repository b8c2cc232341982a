"""Flat configs, and which keys make two runs different."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import of_extension
from omegaconf import OmegaConf

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.flat import differences, flatten, group_choices
from hydrant.files.redaction import redacted
from hydrant.runs.job import redacted_yaml


def test_flatten_and_differences() -> None:
    one = {"seed": 0, "optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "schedules": {}, "name": "a"}
    assert flatten(one) == {
        "seed": 0, "optimizer.lr": 0.1, "optimizer.betas": [0.9, 0.99], "schedules": {}, "name": "a"
    }  # fmt: skip
    assert differences(one, one) == {}
    other = one | {"optimizer": {"lr": 0.2, "momentum": 0}, "name": "b", "tracker": {"mode": 1}}
    assert differences(one, other) == {
        "optimizer.betas": ([0.9, 0.99], None),
        "optimizer.lr": (0.1, 0.2),
        "optimizer.momentum": (None, 0),
    }
    assert list(differences(one, other)) == sorted(differences(one, other))


@pytest.mark.parametrize("tracker", ["local", *of_extension("wandb")])
def test_which_keys_change_the_result(tracker: str) -> None:
    neutral = ["name=b", "resume=null", "eval_batch_size=9", "keep_last=9", "keep_best=2", "keep_every=9",
               "save_async=false", "resume_strict=false", f"tracker={tracker}"]  # fmt: skip
    others = ["seed=1", "duration=1", "global_batch_size=32", "best.mode=min", "init_from=x"]
    usual = check(compose(["tracker=local"]))
    assert list(differences(usual, check(compose([*neutral, *others])))) == sorted(
        w.split("=")[0] for w in others
    )
    assert "optimizer._target_" in differences(usual, check(compose(["tracker=local", "optimizer=sgd"])))


def test_group_choices_leave_out_hydras_groups() -> None:
    ours = {"debug": None, "optimizer": "adamw"}
    assert group_choices({**ours, "hydra/launcher": "basic"}) == ours


CHARACTERS = st.sampled_from("ab 1.e-:#'\"\\\n\t[]{},&*!|>%@é😀\u2028\x85yesno")
PLAIN = st.text(CHARACTERS, max_size=150) | st.floats() | st.integers() | st.booleans() | st.none()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text("abc1", min_size=1), st.recursive(PLAIN, st.lists, max_leaves=10), max_size=4))
def test_plain_values_are_written_as_omegaconf_writes_them(value: dict[str, Any]) -> None:
    assert redacted_yaml(value) == OmegaConf.to_yaml(OmegaConf.create(redacted(value)))


def test_a_config_is_written_as_omegaconf_writes_it() -> None:
    composed = compose(["optimizer=nadam", "+scheduler@schedules.weight_decay=linear", "notes='ü: \"'"])
    for config in (composed, check(composed)):
        assert redacted_yaml(config) == OmegaConf.to_yaml(OmegaConf.create(config))
