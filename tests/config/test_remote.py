"""Overrides from a server or a run folder set hyperparameters, and never count as the consent of the user."""

from __future__ import annotations

from typing import Any

import pytest

from hydrant.config.remote import check_recorded, remote_overrides
from hydrant.errors import ConfigError

REFUSED: list[tuple[str, Any]] = [
    ("allow_targets", "[torch]"), ("+allow_targets", ["torch"]), ("hydra.run.dir", "x"), ("hydra/launcher", "slurm"),
    ("+hydra.callbacks.x._target_", "torch.utils.collect_env.run"), ("++hydra.job.env_set.LD_PRELOAD", "x.so"),
    ("hydra.searchpath", ["file://x"]), ("experiment@hydra.callbacks", "x"), ("optimizer@allow_targets", "adamw"),
    ("--config-dir", "x"), ("-m", ""), ("~model", ""), ("", "x"), ("seed=0 x", 1), ("seed\n", 1),
    ("model._target_", "torch.nn.Linear"), ("model", {"_target_": "torch.nn.Linear"}), ("_x", 1),
    ("model.kwargs", "{a: {_target_: torch.nn.Linear}}"), ("model.kwargs", '{"a": [{"_target_": "torch.nn.Linear"}]}'),
    ("trackers.second.mode", "online"), ("tracker@trackers.x", "local"),
    ("tracker", "local"), ("tracker.entity", "them"),
    ("tracker.save_code", True), ("resume", "x"),
    ("compile.cache_dir", "x"), ("compile.options", {"cpp.cxx": "sh"}), ("compile", {"options": {"cpp.cxx": "sh"}}),
    ("data.root", "/etc"), ("init_from", "../../x"), ("experiment", "../x"), ("data.root", "~/x"),
    ("data.root", "'/x'"), ("data.root", "a/.."), ("data.root", "http://them/x"), ("model.name", "${oc.env:HOME}"),
    ("model.hidden", ["${oc.env:HOME}"]), ("model.hidden", "[${seed}]"),
    ("seed", "0,1"), ("seed", "range(3)"), ("seed", "[1"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=lambda value: repr(value))
def test_a_server_sets_nothing_but_hyperparameters(key: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        remote_overrides({"optimizer.lr": 0.1, key: value})


def test_hyperparameters_of_a_server_become_overrides() -> None:
    values = {
        "optimizer": "adamw", "optimizer.lr": 1e-05, "seed": 3, "model.hidden": [16, 32], "duration": "10ep",
        "deterministic": False, "max_grad_norm": None, "best.metric": "val/loss", "data.root": "data/small",
        "model.name": "tf_efficientnet.in1k", "param_groups.patterns.head": {"match": "fc"},
    }  # fmt: skip
    assert remote_overrides(values) == [
        "optimizer=adamw", "optimizer.lr=1e-05", "seed=3", "model.hidden=[16, 32]", "duration=10ep",
        "deterministic=false", "max_grad_norm=null", "best.metric=val/loss", "data.root=data/small",
        "model.name=tf_efficientnet.in1k", "param_groups.patterns.head={match: 'fc'}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        "allow_targets=[torch]", "++allow_targets=[torch]", "hydra.run.dir=x", "hydra/launcher=slurm", "-m",
        "--config-dir=x", "+hydra.job.env_set={A: b}", "tracker.entity=them", "x@hydra.callbacks=y",
        "trackers.second.entity=them", "trackers.mlflow.tracking_uri=them",
    ],
)  # fmt: skip
def test_a_run_folder_does_not_consent(word: str) -> None:
    check_recorded([word], [word, "seed=0"])
    with pytest.raises(ConfigError, match="is recorded in a run folder, which cannot consent"):
        check_recorded(["seed=0", word], ["seed=0"])


def test_other_recorded_overrides_are_used() -> None:
    check_recorded(
        [
            "tracker.name='a'",
            "tracker.mode=offline",
            "+tracker@trackers.tensorboard=tensorboard",
            "+scheduler@schedules.weight_decay=linear",
            "data.root=/data",
        ],
        [],
    )
