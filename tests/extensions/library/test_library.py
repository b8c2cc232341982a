"""Optimizers of pytorch_optimizer by name: their states, and what is refused."""

import re
from functools import partial
from typing import Any

import pytest
import pytorch_optimizer
import torch
from optimizer_states import check_continues, some_fast
from run_folders import assert_same_state, rows, weights
from torch import nn
from training_runs import Train, whole_and_resumed

from hydrant.errors import ConfigError
from hydrant.extensions.library import _table as library_table
from hydrant.extensions.library import library_optimizer


def test_prodigy_refuses_several_learning_rates(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    head = "+param_groups.patterns.head={match: classifier, lr_scale: 10}"
    train(*SHORT, "optimizer=prodigy", head, status=2)
    assert "Prodigy has one lr for all parameter groups, not 1 and 10" in capsys.readouterr().err


NEEDS_MORE = {"ranger21", "spectralsphere"}  # the number of updates; a model of matrices only


KNOWN, LEFT_OUT = {*pytorch_optimizer.get_supported_optimizers()}, library_table()["left_out"]


def test_optimizers_of_the_package_are_options_or_left_out() -> None:
    assert LEFT_OUT.keys() < KNOWN
    by_licence = {name for name, reason in LEFT_OUT.items() if "licence" in reason}
    assert by_licence == {"fromage", "nero"}  # as the package's README says


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ({"name": "sopa"}, "optimizer.name", "did you mean 'soap'?"),
        ({"name": "fromage"}, "optimizer.name", "its licence"),
        ({"name": "soap", "frequency": 2}, "optimizer.frequency", "precondition_frequency"),
        ({"name": "a2grad", "weight_decay": 0.1}, "optimizer.weight_decay", "unknown argument of a2grad"),
    ],
)
def test_an_unknown_name_or_argument_is_refused(arguments: dict[str, Any], key: str, message: str) -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))]}]
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        library_optimizer(groups, **{"lr": 0.1, "weight_decay": None, **arguments})
    assert caught.value.key == key


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pytorch_optimizer.*\[optimizers\]"):
        library_optimizer([], name="soap", lr=0.1, weight_decay=None)


SHORT = ("tracker=local", "model.hidden=[16]", "duration=8", "log_every=1", "eval_every=4", "save_every=4")


@pytest.mark.parametrize("name", some_fast([*KNOWN - LEFT_OUT.keys() - NEEDS_MORE]))
def test_a_saved_optimizer_of_the_package_continues_exactly(name: str) -> None:
    check_continues(partial(library_optimizer, weight_decay=None), name)


def test_an_option_with_nested_state_resumes(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, half = whole_and_resumed(train, monkeypatch, (*SHORT, "optimizer=soap"), 7)
    assert rows(whole) == rows(half)
    assert_same_state(weights(whole), weights(half))
