"""Masks and sequences of different lengths, padded by a collate function; and integers in every source."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from exact_ids import IDS, Items, check_exact, defaults
from ragged_texts import RECORD, TEXTS
from ranks import run_on_ranks
from run_folders import rows, summary, weights
from training_runs import Train, UserModule

from hydrant.data import Data, dataset, tensors


def test_evaluation_does_not_depend_on_how_batches_are_padded(words: tuple[str, ...], train: Train) -> None:
    whole, parts = (train(*words, f"eval_batch_size={size}", name=f"by_{size}") for size in (40, 3))
    for one, other in zip(rows(whole), rows(parts), strict=True):
        for key in one.keys() & {"val/loss", "val/accuracy"}:
            assert one[key] == pytest.approx(other[key], rel=1e-5)


@pytest.mark.slow
def test_two_ranks_pad_their_own_micro_batches(words: tuple[str, ...], train: Train, workdir: Path) -> None:
    words = (*words, "micro_batch_size=2", "data.num_workers=1")
    one = train(*words, name="one")
    run_on_ranks(2, workdir, [("train", "name=two", *words)])
    two = workdir / "outputs" / "two"
    for alone, together in zip(weights(one).values(), weights(two).values(), strict=True):
        torch.testing.assert_close(together, alone)
    for row, other in zip(rows(one), rows(two), strict=True):
        for key in row.keys() & {"train/loss", "val/loss", "val/accuracy"}:
            assert row[key] == pytest.approx(other[key], rel=1e-5)


@pytest.mark.extension
@pytest.mark.parametrize("mixing", ["mixup", "cutmix"])
def test_dicts_are_not_mixed(
    mixing: str, words: tuple[str, ...], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words, "data.num_classes=3", f"mixing={mixing}", status=2)
    message = "mixing: does not fit this data and task"
    assert message in capsys.readouterr().err


@pytest.mark.extension
@pytest.mark.slow
def test_a_dynamic_graph_takes_batches_of_any_length(
    words: tuple[str, ...], train: Train, user_module: UserModule
) -> None:
    user_module("own_bag", TEXTS.replace(RECORD, ""))  # dynamo guards the length of the list
    words = (*words, "model._target_=own_bag.Bag", "allow_targets=[own_texts,own_bag]")
    folder = train(
        *words, "compile=aot_eager", "compile.dynamic=true", "duration=20", "compile.max_recompiles=0"
    )
    assert summary(folder)["compile"]["recompiles"] == summary(folder)["compile"]["graph_breaks"] == 0
    eager = train(*words, "duration=20", name="eager")
    for one, other in zip(weights(folder).values(), weights(eager).values(), strict=True):
        torch.testing.assert_close(one, other)


def _from_items(folder: Path) -> Data:
    return dataset(**defaults("dataset") | {"train": Items(), "val": Items()})


def _from_tensors(folder: Path) -> Data:
    torch.save({"inputs": {"ids": IDS}, "targets": torch.arange(len(IDS))}, folder / "ids.pt")
    return tensors(**defaults("tensors") | {"train": str(folder / "ids.pt"), "val": str(folder / "ids.pt")})


@pytest.mark.parametrize("make", [_from_items, _from_tensors])
def test_ids_arrive_exactly_in_every_precision(make: Callable[[Path], Data], tmp_path: Path) -> None:
    check_exact(make(tmp_path))
