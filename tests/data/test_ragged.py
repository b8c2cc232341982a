"""Masks and sequences of different lengths, padded by a collate function; and integers in every source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from marks import of_extension
from ragged_texts import RECORD, TEXTS
from ranks import run_on_ranks
from run_folders import rows, summary, weights
from sources import spec
from training_runs import Train, UserModule

from hydrant.batch import tensors_of
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import option_path
from hydrant.config.instantiate import instantiate
from hydrant.data import Data, dataset, memmap, tensors

datasets = pytest.importorskip("datasets")  # no wheel of its pyarrow for Python 3.15
Dataset, DatasetDict = datasets.Dataset, datasets.DatasetDict


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


@pytest.mark.parametrize("mixing", ["mixup", "cutmix"])
def test_dicts_are_not_mixed(
    mixing: str, words: tuple[str, ...], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words, "data.num_classes=3", f"mixing={mixing}", status=2)
    message = "mixing: does not fit this data and task"
    assert message in capsys.readouterr().err


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


IDS = torch.tensor([[0, 2**20], [257, 2**20 - 1], [2**16 + 1, 12345], [2**8 + 1, 999_999]])
"""Most of these change if they are rounded to bfloat16 or float16, or to float32 and back in between."""


class Items:
    """The ids as a map-style data set."""

    def __len__(self) -> int:
        return len(IDS)

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        return {"ids": IDS[index]}, index


class Stream:
    """The same ids, which can only be read in their order."""

    def __iter__(self) -> Iterator[tuple[dict[str, Any], int]]:
        return (Items()[index] for index in range(len(IDS)))


def _defaults(option: str) -> dict[str, Any]:
    plain = yaml.safe_load(option_path("data", option).read_text())
    del plain["_target_"]
    shapes = {"input_shape": None, "num_classes": None}
    return plain | shapes | ({"num_workers": 0} if "num_workers" in plain else {})


def _from_items(folder: Path) -> Data:
    return dataset(**_defaults("dataset") | {"train": Items(), "val": Items()})


def _from_stream(folder: Path) -> Data:
    from hydrant.extensions.streams import stream

    return stream(
        **_defaults("stream")
        | {"train": Stream(), "val": Stream(), "num_samples": len(IDS), "num_val_samples": len(IDS)}
    )


def _from_tensors(folder: Path) -> Data:
    torch.save({"inputs": {"ids": IDS}, "targets": torch.arange(len(IDS))}, folder / "ids.pt")
    return tensors(**_defaults("tensors") | {"train": str(folder / "ids.pt"), "val": str(folder / "ids.pt")})


def _from_files(folder: Path) -> Data:
    np.save(folder / "ids.npy", IDS.numpy())
    return memmap(**_defaults("memmap") | {"train": str(folder), "val": str(folder)})


def _from_hugging_face(folder: Path) -> Data:
    from hydrant.extensions.streams import hugging_face

    split = Dataset.from_dict({"ids": IDS.tolist(), "label": list(range(len(IDS)))})
    DatasetDict(train=split, validation=split).save_to_disk(folder / "saved")
    return hugging_face(**_defaults("hugging_face") | {"path": str(folder / "saved")})


def _from_table(folder: Path) -> Data:
    """A table whose codes are the ids: as many categories as codes, of which only some are validated."""
    from hydrant.extensions.tables import csv
    from hydrant.extensions.tables.csv_file import read_layout

    file, val = folder / "ids.csv", folder / "val.csv"
    file.write_text("ids,more,label\n" + "".join(f"{n},{n},0.5\n" for n in range(1, 2**16 + 2)))
    val.write_text("ids,more,label\n" + "".join(f"{a},{b},0.5\n" for a, b in (IDS % 2**16).tolist()))
    made = _defaults("csv") | {"train": str(file), "val": str(val), "target": "label", "categories": "codes",
                               "categorical": ["ids", "more"], "max_categories": 2**17}  # fmt: skip
    layout, _ = read_layout(made)
    return csv(**made | {"num_classes": layout.num_outputs})


@pytest.mark.parametrize(
    ("make", "modulus"),
    [
        (_from_items, None),
        (_from_tensors, None),
        (_from_files, None),
        *of_extension((_from_stream, None), (_from_hugging_face, None), (_from_table, 2**16)),
    ],
)
def test_ids_arrive_exactly_in_every_precision(
    make: Callable[[Path], Data], modulus: int | None, tmp_path: Path
) -> None:
    batch = next(iter(make(tmp_path).val.batches(spec(), len(IDS))))
    expected = IDS if modulus is None else IDS % modulus
    for option in ("fp32", "bf16", "bf16_true", "fp16"):
        precision = instantiate(check(compose([f"precision={option}"])), "precision", torch.device("cpu"))
        cast = precision.cast(batch)
        [ids] = [t for t in tensors_of(cast.inputs) if not t.is_floating_point()]
        assert torch.equal(ids, expected)
