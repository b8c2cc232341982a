"""Validation sets by name, the test split, folds and limits, in runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import rows, summary
from torch import Tensor
from training_runs import Train

import hydrant
from hydrant.data import Data, InMemorySource
from hydrant.errors import ConfigError
from hydrant.training.prepare.build import prepare
from hydrant.training.trainer import Plan

WORDS = ("tracker=local", "model.hidden=[4]", "duration=4", "eval_every=2", "save_every=2", "log_every=null",
         "global_batch_size=8")  # fmt: skip
DIGITS = ("data.test_ratio=0.2", "limit_train_samples=64")


def points(seed: int, num_samples: int) -> InMemorySource:
    inputs: Tensor = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(seed))
    return InMemorySource(inputs, (inputs.sum(dim=1) > 0).long())


def data(**parts: Any) -> Data:
    fields: dict[str, Any] = {"input_shape": (4,), "num_classes": 2}
    return Data(**{"train": points(0, 64), "val": points(1, 32), **fields, **parts})


def planned(own: Data, *words: str) -> Plan:
    from hydrant.interface import passed_objects
    from hydrant.training.passed_objects import nodes_of, passing

    objects = passed_objects(None, own, None)
    with passing(objects):
        return prepare(hydrant.compose([*WORDS, *words]).job("unused", nodes_of(objects)).config)


def test_every_validation_set_is_evaluated_and_may_decide_the_best(tmp_path: Path) -> None:
    night = points(2, 24)
    own = data(extra_val={"night": night, "rain": points(3, 8)}, test=points(4, 16))
    words = ("averaging=ema", "best.metric=val_ema/night/loss", "best.mode=min")
    config = hydrant.compose([*WORDS, *words])
    run = hydrant.train(config, data=own, folder=tmp_path / "run")
    evaluations = [row for row in rows(run.folder) if "val/loss" in row]
    names = [f"{prefix}{name}/loss" for prefix in ("val", "val_ema") for name in ("", "/night", "/rain")]
    assert [row["num_updates"] for row in evaluations] == [0, 2, 4]
    assert all({*names} <= row.keys() for row in evaluations)
    assert not any(key.startswith(("test", "train")) for row in evaluations for key in row)
    least = min(evaluations, key=lambda row: row["val_ema/night/loss"])
    assert summary(run.folder)["best"]["value"] == least["val_ema/night/loss"]
    assert summary(run.folder)["num_samples"] == {"train": 64, "val": 32, "val/night": 24, "val/rain": 8}
    alone = hydrant.train(hydrant.compose(WORDS), data=data(val=night), folder=tmp_path / "alone")
    for row, other in zip(evaluations, (r for r in rows(alone.folder) if "val/loss" in r), strict=True):
        assert row["val/night/loss"] == other["val/loss"]
    loaded = hydrant.load_run(run.folder, data=own)
    for split in ("val", "night", "rain"):
        prefix = "val" if split == "val" else f"val/{split}"
        values = loaded.evaluate(split)
        assert {key.rpartition("/")[0] for key in values} == {prefix}
        assert values == {key: evaluations[-1][key] for key in values}
    assert loaded.evaluate("test").keys() == {"test/loss", "test/accuracy"}
    assert loaded.evaluate("train").keys() == {"train/loss", "train/accuracy"}


@pytest.mark.parametrize(
    ("parts", "words", "message"),
    [
        ({"extra_val": {"test": points(2, 8)}}, (), r"^data\.extra_val: 'test' cannot name a validation set"),
        ({"extra_val": {"a/b": points(2, 8)}}, (), r"^data\.extra_val: 'a/b' cannot name"),
        ({"val": points(2, 0)}, (), r"^data: there are no validation samples; .* folds=5"),
        ({}, ("test_at_end=true",), r"^test_at_end: the data have no test split, only train, val"),
        ({"test": points(2, 8)}, ("best.metric=test/loss",), r"^best\.metric: no evaluation gives 'test/loss'"),
        ({"class_names": ("a", "b")}, ("folds=99",), r"^folds: 99 folds of 64 training samples"),
    ],
)  # fmt: skip
def test_splits_that_do_not_fit_are_refused(
    parts: dict[str, Any], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(data(**parts), *words)


def test_class_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^data\.class_names: 3 names are given for 2 classes$"):
        data(class_names=("a", "b", "c"))
    with pytest.raises(ConfigError, match=r"^data\.class_names: two classes are named 'a'"):
        data(class_names=("a", "a"))


def test_a_split_that_the_model_does_not_fit_is_named() -> None:
    other = InMemorySource(torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64))
    for parts, words in (({"extra_val": {"odd": other}}, ()), ({"test": other}, ("test_at_end=true",))):
        message = r"^model: fails in a trial of an evaluation of (odd|test), on inputs of shape \[\d+, 5\]"
        with pytest.raises(ConfigError, match=message):
            planned(data(**parts), *words)


def test_limits_apply_to_the_splits_of_a_fold() -> None:
    limits = ("limit_train_samples=20", "limit_val_samples=10", "limit_test_samples=5")
    plan = planned(data(extra_val={"night": points(2, 24)}), "folds=4", "fold=3", *limits)
    sizes = {name: split.source.num_samples for name, split in plan.splits.items()}
    assert sizes == {"train": 20, "val": 10, "night": 10, "test": 5}
    whole = planned(data(), "folds=4", "fold=3")
    assert {name: split.source.num_samples for name, split in whole.splits.items()} == {
        "train": 48, "val": 16, "test": 32
    }  # fmt: skip


def test_the_fold_does_not_depend_on_the_seed_of_the_run() -> None:
    def inputs(*words: str) -> Tensor:
        val: Any = planned(data(), "folds=4", "fold=1", *words).data.val
        return val.inputs

    assert torch.equal(inputs("seed=0"), inputs("seed=1"))
    assert not torch.equal(inputs(), inputs("fold_seed=1"))


@pytest.mark.extension
def test_a_cross_validation_is_compared_over_its_folds(train: Train, workdir: Path) -> None:
    for fold in range(3):
        train(*WORDS, *DIGITS, "folds=3", f"fold={fold}", "test_at_end=true", name=f"fold{fold}")
    result = hydrant.compare(
        *(workdir / "outputs" / f"fold{fold}" for fold in range(3)), metric="test/accuracy"
    )
    assert "3 folds" in str(result)
