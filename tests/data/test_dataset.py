"""Data of your own: items of any structure, and tensors in files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from marks import slow
from run_folders import assert_same_state, rows, weights
from sources import spec
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training_runs import Train, whole_and_resumed

from hydrant.data import Data, dataset, dataset_source
from hydrant.errors import ConfigError


def seen() -> list[tuple[torch.Tensor, torch.Tensor]]:
    import own_texts  # pyright: ignore[reportMissingImports]

    return own_texts.seen


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_true", "fp16"])
def test_integers_arrive_exactly_in_every_precision(
    precision: str, words: tuple[str, ...], train: Train
) -> None:
    train(*words, f"precision={precision}")
    assert {ids.dtype for ids, _ in seen()} == {torch.int64}
    assert {mask.dtype for _, mask in seen()} == {torch.bool}
    import own_texts  # pyright: ignore[reportMissingImports]

    data = [own_texts.Texts(seed=seed) for seed in (0, 1)]
    known = {tuple(text.tolist()) for texts in data for text in texts.texts}
    for ids, mask in seen():
        assert {tuple(row[keep].tolist()) for row, keep in zip(ids, mask, strict=True)} <= known


@pytest.mark.parametrize(
    "more", [(), *slow((("micro_batch_size=2", "data.num_workers=2", "compile=aot_eager"),))]
)
def test_a_run_over_dicts_resumes_exactly(
    more: tuple[str, ...], words: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, (*words, *more), 4)
    assert_same_state(weights(resumed), weights(whole))
    kept = [{k: v for k, v in row.items() if not k.startswith("compile/")} for row in rows(whole)]
    assert [{k: v for k, v in row.items() if not k.startswith("compile/")} for row in rows(resumed)] == kept


def test_micro_batches_that_are_padded_alone_give_the_same_gradients(
    words: tuple[str, ...], train: Train
) -> None:
    whole, parts = train(*words, name="whole"), train(*words, "micro_batch_size=2", name="parts")
    for one, other in zip(weights(whole).values(), weights(parts).values(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("data.target=lable",), "data.target: no sample has the key 'lable'; did you mean 'label'?"),
        (("mixing=mixup",), "mixing: mixes classes, and these data have none; use mixing=none"),
        (("data.train._target_=torch.nn.Identity",), "data.train: a Identity has no __len__ and __getitem__"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    more: tuple[str, ...],
    message: str,
    words: tuple[str, ...],
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(*words, *more, status=2)
    assert message in capsys.readouterr().err


class Items:
    """A data set of given items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def read_sets(train: Items, **changes: Any) -> Data:
    settings: dict[str, Any] = {
        "val": train,
        "test": None,
        "extra_val": {},
        "target": None,
        "class_names": None,
        "collate": None,
        "input_shape": None,
        "num_classes": None,
        "num_workers": 0,
        "on_error": "fail",
        "read": None,
    }
    return dataset(train=train, **settings | changes)


def read(*items: Any, target: str | None = None, num_classes: int | None = None) -> Any:
    data = read_sets(Items(*items), target=target, num_classes=num_classes)
    return next(iter(data.val.batches(spec(), len(items))))


def test_items_are_pairs_or_dicts() -> None:
    batch = read((torch.tensor([1, 2]), 0.5), (torch.tensor([3, 4]), 1.5))
    assert (batch.inputs.tolist(), batch.targets.tolist()) == ([[1, 2], [3, 4]], [0.5, 1.5])
    batch = read({"ids": 7, "label": 1}, {"ids": 8, "label": 0}, target="label")
    assert (batch.inputs["ids"].tolist(), batch.targets.tolist()) == ([7, 8], [1, 0])
    batch = read({"ids": 7}, {"ids": 8})
    assert (batch.inputs["ids"].tolist(), batch.num_samples) == ([7, 8], 2)
    with pytest.raises(ConfigError, match="sample 0 is a int, but a pair"):
        read(5)
    with pytest.raises(ConfigError, match="no tensor of a batch has a dimension"):
        _ = read(("a", "b")).num_samples
    with pytest.raises(ConfigError, match=r"data.train: has no samples"):
        read()
    assert read((1.0, np.uint64(3)), (2.0, np.uint64(0))).targets.tolist() == [3, 0]


class Forwards(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.ones(2), 0


PAIRS = TensorDataset(torch.ones(3, 2), torch.zeros(3))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            Forwards(),
            r"a Forwards has no .*; hydrant\.data\.Data\(hydrant\.data\.IterableSource\(train_set, num",
        ),
        (DataLoader(PAIRS), r"a DataLoader has no .*; give its \.dataset; global_batch_size is the size"),
        (
            (torch.ones(3, 2), torch.zeros(3)),
            r"sample 0 is a Tensor, .* by torch\.utils\.data\.TensorDataset\(inputs",
        ),
        (
            TensorDataset(torch.ones(3, 2)),
            r"sample 0 is a tuple of 1, .*; a sample without a target is \(input, \(\)\)",
        ),
        (TensorDataset(*3 * [torch.ones(3)]), r"sample 0 is a tuple of 3, .* such as \(\(x, weight\), y\)"),
    ],
)
def test_what_is_no_data_set_of_pairs_is_told_what_to_give(items: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^data: {message}"):
        next(iter(dataset_source(items).batches(spec(), 1)))


@pytest.mark.parametrize("shape", [(3, 8, 8), (5,)])
def test_bytes_stay_bytes(shape: tuple[int, ...]) -> None:
    batch = read((torch.full(shape, 200, dtype=torch.uint8), 0), (torch.zeros(shape, dtype=torch.uint8), 1))
    assert (batch.inputs.dtype, int(batch.inputs.max())) == (torch.uint8, 200)
