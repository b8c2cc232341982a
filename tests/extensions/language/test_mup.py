"""muP scales the lr of each role of a weight, and is refused where it does not fit."""

from typing import Any

import pytest
from language_models import TINY, gpt, save_tokens
from run_folders import training_rows
from torch import nn
from training_runs import Train

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.optimizers.param_groups import mup_scales, param_groups

PLAIN: dict[str, Any] = {"no_decay": False, "layer_decay": None, "layer_decay_min_scale": 0.0, "patterns": {}}


@pytest.mark.parametrize(
    ("rule", "lrs"),
    [
        ("adam", {"input": 1.0, "hidden": 0.25, "output": 1.0}),
        ("sgd", {"input": 4.0, "hidden": 1.0, "output": 4.0}),
        ("muon", {"input": 1.0, "hidden": 0.5, "output": 1.0}),
        ("spectral", {"input": 1.0, "hidden": 1.0, "output": 1.0}),
    ],
)
def test_a_model_four_times_as_wide_has_these_learning_rates(rule: str, lrs: dict[str, float]) -> None:
    model = gpt(width=64, mup_base_width=16)
    groups = param_groups(model, dict(model.named_parameters()), 1.0, **PLAIN, mup=rule)
    assert {group["name"]: group["lr"] for group in groups} == lrs
    names = {id(p): name for name, p in model.named_parameters()}
    roles = {names[id(p)]: group["name"] for group in groups for p in group["params"]}
    assert roles["embedding.weight"] == roles["norm.weight"] == "input"
    assert roles["blocks.0.attention.query_norm.weight"] == "input"
    assert roles["blocks.0.attention.query.weight"] == roles["blocks.1.feed_forward.down.weight"] == "hidden"
    assert roles["readout.weight"] == "output"


def test_heads_of_a_fixed_size_do_not_scale_their_norms() -> None:
    model = gpt(width=64, num_heads=8, head_dim=8, mup_base_width=16, mup_base_head_dim=8)
    scales = mup_scales(model, "sgd")
    assert scales["blocks.0.attention.key_norm.weight"] == ("input", 1.0)
    assert scales["norm.weight"] == ("input", 4.0)


def test_a_pattern_with_an_lr_replaces_the_rule_and_others_keep_it() -> None:
    model = gpt(width=64, mup_base_width=16)
    patterns = {
        "first": {"match": "blocks.0.attention.query", "lr": 0.5},
        "second": {"match": "blocks.1.attention.query", "weight_decay": 0.0},
    }
    groups = param_groups(
        model, dict(model.named_parameters()), 1.0, **PLAIN | {"patterns": patterns}, mup="adam"
    )
    lrs = {group["name"]: group["lr"] for group in groups}
    assert (lrs["first"], lrs["second_hidden"], lrs["hidden"]) == (0.5, 0.25, 0.25)


def test_a_run_schedules_and_logs_the_lr_of_each_role(train: Train) -> None:
    save_tokens()
    run = train(
        *TINY,
        "model.width=32",
        "model.mup_base_width=16",
        "mup=adam",
        "optimizer.lr=0.01",
        "scheduler=linear",
    )
    for row in training_rows(run):
        assert row["optim/lr/hidden"] == pytest.approx(row["optim/lr"] / 2)
        assert row["optim/lr/output"] == row["optim/lr"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.mup_base_width=16",), "mup: GPT is parametrized by muP, so it needs a rule"),
        (("mup=adam",), "mup: GPT is not parametrized by muP"),
        (("mup=adamw", "model.mup_base_width=16"), "mup"),
    ],
)
def test_mup_without_a_rule_and_a_rule_without_mup_are_refused(
    words: tuple[str, ...], message: str, workdir: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tokens()
    assert cli.main(["train", *TINY, *words]) == 2
    assert message in capsys.readouterr().err


def test_another_model_has_no_roles() -> None:
    assert mup_scales(nn.Linear(2, 2), None) == {}
    with pytest.raises(ConfigError, match="Linear is not parametrized by muP"):
        mup_scales(nn.Linear(2, 2), "adam")
