"""Param groups equal timm's, and have their own fields and schedules. Impossible settings are rejected."""

from collections.abc import Sequence
from typing import Any

import pytest
import timm
import torch
from marks import of_extension, slow
from run_folders import rows, training_rows, weights
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn
from training_runs import Train

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.optimizers.param_groups import param_groups
from hydrant.training.prepare.build import prepare

SHORT = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=6")
PLAIN: dict[str, Any] = {
    "no_decay": False,
    "layer_decay": None,
    "layer_decay_min_scale": 0.0,
    "patterns": {},
    "mup": None,
}


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return timm.create_model("test_vit", num_classes=4)


def test_without_settings_there_is_one_group(vit: nn.Module) -> None:
    [group] = param_groups(vit, dict(vit.named_parameters()), 0.1, **PLAIN)
    assert group == {"params": list(vit.parameters()), "name": "all", "pattern": None}


def ids(parameters: Any) -> set[int]:
    return {id(p) for p in parameters}


def test_no_decay_equals_timm(vit: nn.Module) -> None:
    expected_groups = param_groups_weight_decay(vit, 0.05, no_weight_decay_list=vit.no_weight_decay())
    groups = {
        g["name"]: g
        for g in param_groups(vit, dict(vit.named_parameters()), 0.1, **PLAIN | {"no_decay": True})
    }
    assert groups.keys() == {"decay", "no_decay"}
    assert groups["no_decay"]["weight_decay"] == 0.0
    assert "weight_decay" not in groups["decay"]  # it keeps the optimizer's
    assert [ids(groups[n]["params"]) for n in ("no_decay", "decay")] == [
        ids(g["params"]) for g in expected_groups
    ]


@pytest.mark.parametrize("min_scale", [0.0, 0.6])
def test_layer_decay_equals_timm(vit: nn.Module, min_scale: float) -> None:
    expected_groups = param_groups_layer_decay(
        vit, 0.05, no_weight_decay_list=vit.no_weight_decay(), layer_decay=0.75, min_scale=min_scale
    )
    settings = {"no_decay": True, "layer_decay": 0.75, "layer_decay_min_scale": min_scale}
    groups = param_groups(vit, dict(vit.named_parameters()), 0.1, **PLAIN | settings)
    expected = {id(p): (0.1 * g["lr_scale"], g["weight_decay"]) for g in expected_groups for p in g["params"]}
    assert {id(p): (g["lr"], g.get("weight_decay", 0.05)) for g in groups for p in g["params"]} == expected
    assert len({g["name"] for g in groups}) == len(groups)
    assert {"layer_0_decay", "layer_0_no_decay"} <= {g["name"] for g in groups}


def test_a_parameter_belongs_to_the_first_pattern_that_matches(vit: nn.Module) -> None:
    patterns = {"head": {"match": "head", "lr": 1.0}, "rest_of_head": {"match": "head|norm", "lr_scale": 0.5}}
    settings = {"patterns": patterns, "layer_decay": 0.5, "no_decay": True}
    groups = {g["name"]: g for g in param_groups(vit, dict(vit.named_parameters()), 0.1, **PLAIN | settings)}
    assert ids(groups["head_decay"]["params"]) == {id(vit.head.weight)}
    assert (groups["head_decay"]["lr"], groups["head_no_decay"]["weight_decay"]) == (1.0, 0.0)
    assert groups["rest_of_head_no_decay"]["lr"] == 0.05
    assert sum(len(g["params"]) for g in groups.values()) == len(list(vit.parameters()))


def test_a_group_has_its_own_schedule_which_is_logged_and_previewed(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [name for name, _ in _mlp().named_parameters()]
    layer = names[-1].rpartition(".")[0]
    last = f"+param_groups.patterns.last.match={layer}"
    words = (*SHORT, "scheduler=linear", last, "+param_groups.patterns.last.lr=0.01",
             "+scheduler@param_groups.patterns.last.schedules.lr=constant")  # fmt: skip
    folder = train(*words)
    falling = [row["optim/lr/all"] for row in training_rows(folder)]
    assert falling == pytest.approx([1e-3 * (1 - n / 6) for n in range(6)])
    for name in ("optim/lr/last", "optim/lr"):  # the largest
        assert [row[name] for row in training_rows(folder)] == [0.01] * 6
    optimizers = prepare(check(compose(words))).optimizers
    for parameter in optimizers.entries["main"].optimizer.param_groups[1]["params"]:
        parameter.requires_grad_(False)
    frozen = optimizers.schedules.values(0)
    assert (frozen["lr"], frozen["lr/last"]) == (1e-3, 0.01)
    capsys.readouterr()
    assert cli.main(["preview", *words]) == 0
    shown = capsys.readouterr().out
    assert "main.1 (last): 170 parameters; lr 0.01" in shown
    assert "schedule     lr of last: 0.01 -> 0.01 -> 0.01" in shown


def _mlp() -> nn.Module:
    from hydrant.models import MLP

    return MLP(input_shape=(1, 8, 8), num_classes=10, hidden=[16], dropout=0.0)


def test_a_group_without_lr_does_not_learn(train: Train) -> None:
    first, *_ = [name for name, _ in _mlp().named_parameters()]
    frozen = f'+param_groups.patterns.first={{match: "{first}", lr_scale: 0}}'
    base = (*SHORT, "save_every=2", "keep_last=9", "optimizer.weight_decay=0.1")
    folder = train(*base, frozen)
    one, other = (weights(folder, f"update_0000000{n}") for n in (2, 6))
    assert [name for name in one if torch.equal(one[name], other[name])] == [first]
    assert rows(train(*base, "param_groups.no_decay=true", name="other")) != rows(folder)


@pytest.mark.parametrize(("rule", "factor"), [("null", 1.0), ("linear", 0.5), ("sqrt", 0.5**0.5)])
def test_lr_scaling_depends_on_the_batch_size(rule: str, factor: float) -> None:
    words = (*SHORT, "global_batch_size=128", f"lr_scaling={rule}", "scheduler=constant")
    assert scheduled(words, 0)["lr"] == pytest.approx(1e-3 * factor, rel=1e-12)


def test_groups_with_equal_fields_train_like_one_group(train: Train) -> None:
    base = (*SHORT, "optimizer=sgd", "optimizer.weight_decay=0", "agc=0.01", "model.hidden=[16,8]")
    grouped = train(*base, "param_groups.no_decay=true", name="grouped")
    plain = rows(train(*base, name="plain"))
    for row, expected in zip(rows(grouped), plain, strict=True):
        row = {key: value for key, value in row.items() if "decay" not in key}
        norms = [r.pop("optim/grad_norm", 0.0) for r in (row, expected)]
        assert row == expected
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)  # the same weights, summed in another order


def scheduled(words: Sequence[str], update: int) -> dict[str, float]:
    """Return what the row of an update logs in the group `optim`, such as `lr`."""
    return prepare(check(compose(words))).optimizers.schedules.values(update)


def test_the_schedule_of_a_pattern_applies_with_no_decay() -> None:
    layer = [name for name, _ in _mlp().named_parameters()][-1].rpartition(".")[0]
    words = (*SHORT, f"+param_groups.patterns.last.match={layer}", "param_groups.no_decay=true",
             "scheduler=linear", "+scheduler@param_groups.patterns.last.schedules.lr=constant")  # fmt: skip
    final = scheduled(words, 5)
    assert final["lr/last_decay"] == final["lr/last_no_decay"] == 1e-3
    assert final["lr/decay"] < final["lr"] == 1e-3


def test_the_order_of_patterns_is_part_of_the_config(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = [name for name, _ in _mlp().named_parameters()][-1].rpartition(".")[0]
    patterns = (f"+param_groups.patterns.a.match={layer}", "+param_groups.patterns.b.match=.*weight")
    for _ in range(2):
        train(*SHORT, *patterns)
    train(*SHORT, *patterns[::-1], status=2)
    assert "param_groups.patterns in this order" in capsys.readouterr().err


PATTERN = "+param_groups.patterns.head="


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((PATTERN + "{match: nothing}",), "param_groups.patterns.head.match: 'nothing' matches no parameter"),
        ((PATTERN + "{match: \"(\"}",), "param_groups.patterns.head.match: needs a regular expression"),
        ((PATTERN + "{match: .*weight, wd: 0}",), "head.wd: AdamW has no 'wd' for the group head. It has amsgrad"),
        (("+param_groups.patterns.head.match=.*weight",
          "+scheduler@param_groups.patterns.head.schedules.momentum=linear"),
         "param_groups.patterns.head.schedules.momentum: AdamW has no number 'momentum' to schedule"),
        ((PATTERN + "{match: .*weight, lr: -1}",), "param_groups.patterns.head.lr: torch.optim.AdamW refuses it"),
        *of_extension(
            (("+param_groups.patterns.head.match=.*weight", "+scheduler@param_groups.patterns.head.schedules.lr=lambda",
              "param_groups.patterns.head.schedules.lr.fn._target_=math.cos", "allow_targets=[math]"),
             "param_groups.patterns.head.schedules.lr: returns -0.0004"),
        ),
        (("param_groups.no_decay=true", "optimizer=lbfgs"), "optimizer: torch.optim.LBFGS refuses it: LBFGS"),
        *slow(
            ((PATTERN + "5",), "param_groups.patterns: needs a mapping of keys to values"),
            ((PATTERN + "{lr: 1}",), "param_groups.patterns.head.match: needs a regular expression"),
            ((PATTERN + "{match: .*weight, lr_scale: fast}",), "param_groups.patterns.head.lr_scale: needs a number"),
            ((PATTERN + "{match: .*weight, lr: fast}",), "param_groups.patterns.head.lr: needs a number"),
            ((PATTERN + "{match: .*weight, betas: 0.9}",),
             "param_groups.patterns.head.betas: needs a list of 2 numbers"),
            ((PATTERN + "{match: .*weight, schedules: {lr: cosine}}",),
             "param_groups.patterns.head.schedules.lr: 'cosine' is not a config with a _target_"),
            (("+param_groups.patterns.a.match=.*", "+param_groups.patterns.head.match=.*weight"),
       "param_groups.patterns.head.match: '.*weight' matches no parameter"),
            (("param_groups.layer_decay=0.5",), "param_groups.layer_decay: timm finds no layers in MLP"),
            (("param_groups.layer_decay=2",), "param_groups.layer_decay: needs a number above 0 and at most 1"),
            (("param_groups.no_decay=true", "optimizer=rprop"), "param_groups: Rprop has no 'weight_decay'"),
            (("param_groups.decay=1",), "param_groups.decay: no such key; did you mean 'no_decay'"),
            (("lr_scaling=cubic",), "lr_scaling: unknown value 'cubic'"),
        ),
    ],
)  # fmt: skip
def test_impossible_settings_are_rejected(
    words: tuple[str, ...], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SHORT, *words, status=2)
    assert message in capsys.readouterr().err
