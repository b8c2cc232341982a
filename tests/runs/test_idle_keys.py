"""Keys of the command line that have no effect are said."""

from __future__ import annotations

import pytest
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.runs.config_keys import idle_keys

CASES = {
    "limit_test_samples=5": (),
    "fold_seed=3": ("folds=5",),
    "lr_base_size=32": ("lr_scaling=linear",),
    "init_strict=false": ("init_from=a",),
    "keep_last=3": ("save_every=1",),
    "keep_best=3": ("save_every=1",),
    "keep_every=3": ("save_every=1",),
    "patience=3": ("eval_every=1",),
    "param_groups.layer_decay_min_scale=0.1": ("param_groups.layer_decay=0.5",),
}


@pytest.mark.parametrize(("word", "others"), CASES.items())
def test_a_key_without_effect_is_named(word: str, others: tuple[str, ...]) -> None:
    def told(*words: str, has_test: bool = False) -> list[str]:
        return list(idle_keys(words, check(compose(words)), has_test=has_test))

    [sentence] = told(word, "save_every=null", "eval_every=null")
    key = word.partition("=")[0]
    assert sentence.startswith(f"{key} has no effect, because ")
    assert told(f"{key}=null") == [] if key in ("limit_test_samples", "keep_every", "patience") else True
    assert told(word, *others, has_test=True) == []


def test_keys_of_files_and_losses() -> None:
    config = {"data": {"val": "val.csv", "test": None}, "task": {"loss": "mse"}}
    words = ["data.val_ratio=0.3", "data.test_ratio=0.3", "task.delta=2"]
    assert list(idle_keys(words, config, has_test=True)) == [
        "data.val_ratio has no effect, because data.val gives these samples",
        "task.delta has no effect, because task.loss is mse",
    ]
    assert list(idle_keys(words, {"data": {}, "task": {"loss": "huber"}}, has_test=True)) == []


def test_a_run_says_them(train: Train) -> None:
    folder = train("tracker=local", "duration=1", "model.hidden=[4]", "limit_test_samples=5", name="idle")
    log = (folder / "train.log").read_text()
    assert log.count("limit_test_samples has no effect, because the data have no test split") == 1
