"""Data of your own: items of any structure, and tensors in files."""

import multiprocessing
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import of_extension, slow
from run_folders import assert_same_state, rows, weights
from sources import joined, same, spec, update
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from training_runs import Train, UserModule, whole_and_resumed

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data import Data, dataset, dataset_source, tensors
from hydrant.data.dataset import stack
from hydrant.errors import ConfigError, DataError, HydrantError
from hydrant.interface import passed_objects


def seen() -> list[tuple[torch.Tensor, torch.Tensor]]:
    import own_texts

    return own_texts.seen


@pytest.mark.parametrize("precision", ["fp16", *slow("fp32", "bf16", "bf16_true")])
def test_integers_arrive_exactly_in_every_precision(
    precision: str, words: tuple[str, ...], train: Train
) -> None:
    train(*words, f"precision={precision}")
    assert {ids.dtype for ids, _ in seen()} == {torch.int64}
    assert {mask.dtype for _, mask in seen()} == {torch.bool}
    import own_texts

    data = [own_texts.Texts(seed=seed) for seed in (0, 1)]
    known = {tuple(text.tolist()) for texts in data for text in texts.texts}
    for ids, mask in seen():
        assert {tuple(row[keep].tolist()) for row, keep in zip(ids, mask, strict=True)} <= known


@pytest.mark.parametrize(
    "more", [(), *of_extension(*slow((("micro_batch_size=2", "data.num_workers=2", "compile=aot_eager"),)))]
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
        *of_extension((("mixing=mixup",), "mixing: mixes classes, and these data have none; use")),
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

    classes: list[str]

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def read_sets(train: Items, **changes: Any) -> Data:
    unset = ("test", "target", "class_names", "collate", "input_shape", "num_classes", "read")
    given = {"val": train, "extra_val": {}, "num_workers": 0, "on_error": "fail", "in_memory": False}
    given |= {"val_ratio": 0.0, "split_seed": 0}
    return dataset(train=train, **dict[str, Any].fromkeys(unset) | given | changes)


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
    with pytest.raises(ConfigError, match=r"data.train: has no samples; check its arguments"):
        read()
    assert read((1.0, np.uint64(3)), (2.0, np.uint64(0))).targets.tolist() == [3, 0]


class Forwards(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield torch.ones(2), 0


PAIRS = TensorDataset(torch.ones(3, 2), torch.zeros(3))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (Forwards(), r"a Forwards has no .*; data=stream reads a training set in its order"),
        (DataLoader(PAIRS), r"a DataLoader has no .*; give its \.dataset; global_batch_size is the size"),
        (
            (torch.ones(3, 2), torch.zeros(3)),
            r"sample 0 is a Tensor, .* are torch\.utils\.data\.TensorDataset\(inputs",
        ),
        (
            TensorDataset(torch.ones(3, 2)),
            r"sample 0 is a tuple of 1, .*; give .* \(x, \(\)\) without a target",
        ),
        (TensorDataset(*3 * [torch.ones(3)]), r"sample 0 is a tuple of 3, .* give \(\(x, weight\), y\)"),
    ],
)
def test_what_is_no_data_set_of_pairs_is_told_what_to_give(items: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^data: {message}"):
        next(iter(dataset_source(items).batches(spec(), 1)))


class Counted(Items):
    """Items whose reads in this process are counted."""

    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.reads = Counter[int]()

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return super().__getitem__(index)


def test_items_that_never_change_are_read_once_and_give_the_same_batches() -> None:
    fixed = TensorDataset(torch.rand(25, 3).double(), torch.arange(25))
    size = {"micro_batch_size": 6}
    items, read_often = Counted(*fixed), read_sets(Items(*fixed)).train
    held = [read_sets(items, in_memory=True, num_workers=2, collate=collate) for collate in (None, stack)]
    held.append(read_sets(Items(*fixed), in_memory=True, on_error="skip"))
    for source in (data.train for data in held):
        for chosen in (range(25), np.arange(20)):
            one, other = source.subset(chosen), read_often.subset(chosen)
            assert all(same(update(one, n, 2, **size), update(other, n, 2, **size)) for n in (0, 1, 5))
            assert same(joined(one.batches(spec(), 8)), joined(other.batches(spec(), 8)))
    assert Counter(items.reads.values()) == {3: 20, 2: 5}  # once for all subsets, or for each one held
    assert not multiprocessing.active_children()
    for different in ((torch.ones(3), 0), ("text", 0)):
        with pytest.raises(ConfigError, match=r"data.in_memory: true cannot hold .*; false reads any"):
            dataset_source(Items((torch.ones(2), 0), different), in_memory=True).stream(spec())


def test_samples_that_change_are_read_as_they_are_now() -> None:
    """Those of a `TensorDataset` too, which a hook may change, or its owner between two runs."""
    pairs: Any = TensorDataset(torch.zeros(8, 1), torch.zeros(8))
    sources = [dataset_source(pairs), read_sets(pairs).train]
    streams = [source.stream(spec()) for source in sources]
    for number, value in enumerate((0.0, 1.0)):
        pairs.tensors[1].fill_(value)
        batches = [batch for stream in streams for batch in stream.micro_batches(number)]
        batches += [batch for source in sources for batch in source.batches(spec(), 8)]
        assert {value for batch in batches for value in batch.targets.tolist()} == {value}


@pytest.mark.parametrize("shape", [(3, 8, 8), (5,)])
def test_bytes_stay_bytes(shape: tuple[int, ...]) -> None:
    batch = read((torch.full(shape, 200, dtype=torch.uint8), 0), (torch.zeros(shape, dtype=torch.uint8), 1))
    assert (batch.inputs.dtype, int(batch.inputs.max())) == (torch.uint8, 200)


def test_doubles_become_float32() -> None:
    batch = read((np.ones(3), 0.5), (np.zeros(3), 1.5))
    assert (batch.inputs.dtype, batch.targets.dtype) == (torch.float32, torch.float32)


def test_samples_of_different_sizes_need_a_collate_function() -> None:
    refusal = r"data.collate: cannot make a batch of 2 samples: .*set a function"
    with pytest.raises(ConfigError, match=refusal):
        read((torch.zeros(2), 0), (torch.zeros(3), 1))


def test_the_classes_of_all_splits_are_those_of_training() -> None:
    """Otherwise the numbers of their targets mean other classes: a folder of validation images may lack one."""

    def named(*classes: str) -> Items:
        items = Items((torch.ones(2), 0))
        items.classes = list(classes)
        return items

    learned = named("cat", "dog", "fish")
    message = (
        r"data: class 1 of data.extra_val.night is 'fish', and in training \['dog'\]; give all splits the"
    )
    with pytest.raises(ConfigError, match=message):
        read_sets(learned, val=named("cat", "dog", "fish"), extra_val={"night": named("cat", "fish")})
    with pytest.raises(ConfigError, match=r"class 3 of data.test is 'fox', and in training no class"):
        read_sets(learned, val=learned, test=named("cat", "dog", "fish", "fox"))
    assert read_sets(learned, val=named("cat", "dog"), test=Items((torch.ones(2), 2))).num_classes == 3


TOLD = """
class Told(list):
    input_shape, vocab_size, classes = (4,), 3, ["a"]
"""


def test_a_data_set_tells_its_numbers(user_module: UserModule) -> None:
    """To models that refer to them, unless they are given; and to `Data`."""
    user_module("own_told", TOLD)
    sets = [f"data.{key}._target_=own_told.Told" for key in ("train", "val")]
    words = ("data=dataset", *sets, "model=mlp", "allow_targets=[own_told]")
    for given, number in (([], 3), (["data.num_classes=5"], 5)):
        model = check(compose([*words, *given]))["model"]
        assert (model["input_shape"], model["num_classes"]) == ([4], number)
    from own_told import Told

    told = Told([(1.0, 0)])
    for data in (read_sets(told), passed_objects(None, (told, told), None)["data"]):
        assert (data.input_shape, data.num_classes) == ((4,), 3)


def save(folder: Path, content: Any, name: str = "part.pt") -> str:
    torch.save(content, folder / name)
    return str(folder / name)


def from_files(train: str, val: str | None, **changes: Any) -> Any:
    parts: Any = {"train": train, "val": val, "test": None, "extra_val": {}}
    shape: Any = {"input_shape": None, "num_classes": None, "class_names": None, "mean": [0.0], "std": [1.0]}
    return tensors(**{**parts, **shape, **changes})


def test_tensors_in_files_are_read_as_they_are(tmp_path: Path) -> None:
    ids = torch.arange(2**20, 2**20 + 6).view(3, 2)
    nested = save(tmp_path, {"inputs": {"ids": ids, "x": torch.rand(3)}, "targets": torch.rand(3, 2)})
    np.savez(tmp_path / "part.npz", inputs=ids.numpy(), targets=np.arange(3.0))
    data = from_files(nested, str(tmp_path / "part.npz"))
    batch = next(iter(data.train.batches(spec(), 3)))
    assert torch.equal(batch.inputs["ids"], ids)
    inputs, targets = joined(data.val.batches(spec(), 2))
    assert torch.equal(inputs, ids)
    assert (targets.dtype, targets.tolist()) == (torch.float32, [0, 1, 2])


def test_files_may_hold_further_splits(tmp_path: Path) -> None:
    files = [
        save(tmp_path, {"inputs": torch.rand(n, 2), "targets": torch.arange(n)}, f"{n}.pt") for n in (3, 4, 5)
    ]
    data = from_files(files[0], None, test=files[1], extra_val={"night": files[2]}, class_names=["a", "b"])
    sizes = [part.num_samples for part in (data.train, data.val, data.test, data.extra_val["night"])]
    assert (sizes, data.class_names) == ([3, 0, 4, 5], ("a", "b"))
    with pytest.raises(ConfigError, match=r"^data\.extra_val\.night: there is no file"):
        from_files(files[0], None, extra_val={"night": "none.pt"})


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ({"inputs": torch.zeros(3), "targets": torch.zeros(2)}, ConfigError, "2 and 3 samples"),
        (
            {"inputs": ["a", "b"], "targets": torch.zeros(2)},
            ConfigError,
            "holds a str; it needs dense tensors",
        ),
        (
            {"inputs": torch.tensor(1), "targets": torch.zeros(2)},
            ConfigError,
            r"holds a tensor torch.strided \[\]",
        ),
        ({"images": torch.zeros(3)}, ConfigError, "holds images, but inputs and targets"),
        (torch.zeros(3), ConfigError, "holds a Tensor"),
        (b"no tensors", DataError, "cannot be read"),
        (
            {"inputs": torch.eye(3).to_sparse(), "targets": torch.zeros(3)},
            ConfigError,
            "holds a tensor torch.sparse",
        ),
        (Items(), DataError, "cannot be read"),  # a pickle of other classes may execute code
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
def test_other_files_are_refused(
    content: Any, error: type[HydrantError], message: str, tmp_path: Path
) -> None:
    file = save(tmp_path, content)
    if isinstance(content, bytes):
        Path(file).write_bytes(content)
    with pytest.raises(error, match=message):
        from_files(file, file)


@pytest.mark.parametrize("targets", [(), {}])
def test_targets_may_be_missing(targets: Any, tmp_path: Path) -> None:
    """A task may take them from the inputs."""
    file = save(tmp_path, {"inputs": torch.arange(24.0).view(24, 1), "targets": targets})
    stream = from_files(file, file).train.stream(spec(micro_batch_size=4))
    batches = [batch for n in range(4) for batch in stream.micro_batches(n)]
    assert [(batch.num_samples, batch.targets) for batch in batches] == [(4, targets)] * 12


def test_a_normalization_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = save(tmp_path, {"inputs": torch.zeros(3, 2), "targets": torch.zeros(3)})
    with pytest.raises(ConfigError, match=r"data\.mean: needs a number for each of 2 channels"):
        from_files(file, file, mean=[0.0] * 3, std=[1.0] * 3)
