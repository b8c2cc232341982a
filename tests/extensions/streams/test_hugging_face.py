"""Data sets of Hugging Face's library, made in memory and saved; there is no network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sources import joined, spec
from training_runs import Train

from hydrant.config.groups import option_path
from hydrant.data import Data
from hydrant.data.splits import cut_fold
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.streams import hugging_face

datasets = pytest.importorskip("datasets")  # no wheel of its pyarrow for Python 3.15
ClassLabel, Dataset, DatasetDict = datasets.ClassLabel, datasets.Dataset, datasets.DatasetDict
Features, Image, List, Value = datasets.Features, datasets.Image, datasets.List, datasets.Value

KINDS = ["cat", "dog", "fish"]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Any:
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data set with two splits: images, ids of different lengths, texts and classes."""
    from PIL import Image as PillowImage

    images = [PillowImage.fromarray(np.full((4, 5, 3), 10 * n, dtype=np.uint8)) for n in range(9)]
    rows = {"image": images, "ids": [[2**20 - n] * (1 + n % 3) for n in range(9)], "text": list("abcdefghi"),
            "number": [n + 0.5 for n in range(9)], "label": [n % 3 for n in range(9)]}  # fmt: skip
    kinds = {"image": Image(), "ids": List(Value("int64")), "text": Value("string"), "number": Value("float64"),
             "label": ClassLabel(names=KINDS)}  # fmt: skip
    folder = tmp_path_factory.mktemp("hugging_face") / "saved"
    split = Dataset.from_dict(rows, features=Features(kinds))
    DatasetDict(train=split, validation=split.select(range(6))).save_to_disk(folder)
    return str(folder)


def read(path: str, **changes: Any) -> Data:
    plain = yaml.safe_load(option_path("data", "hugging_face").read_text())
    del plain["_target_"]
    return hugging_face(**plain | {"path": path, "num_workers": 0, "num_classes": None} | changes)


def first(data: Data, count: int = 2) -> Any:
    return next(iter(data.val.batches(spec(), count)))


def test_images_are_normalized_pixels_and_classes_have_names(saved: str) -> None:
    data = read(saved, inputs="image", mean=[0.5], std=[0.25])
    batch = first(data)
    assert (batch.inputs.shape, batch.inputs.dtype) == ((2, 3, 4, 5), torch.float32)
    torch.testing.assert_close(batch.inputs[1].unique(), torch.tensor([(10 / 255 - 0.5) / 0.25]))
    assert (data.num_classes, data.class_names, batch.targets.tolist()) == (3, tuple(KINDS), [0, 1])
    assert (data.train.num_samples, data.val.num_samples) == (9, 6)


def test_columns_are_a_dict_and_integers_stay_integers(saved: str) -> None:
    batch = first(read(saved, inputs=["text", "number"], target=None))
    assert batch.inputs["text"] == ["a", "b"]
    assert batch.inputs["number"].tolist() == [0.5, 1.5]
    assert not batch.targets
    one = first(read(saved, inputs="ids"), 1).inputs
    assert (one.tolist(), one.dtype) == ([[2**20]], torch.int64)
    assert set(first(read(saved), 1).inputs) == {"image", "ids", "text", "number"}


def test_transforms_and_collate_see_the_input(saved: str) -> None:
    data = read(saved, inputs="image", eval_transform=lambda image: image[:, :2, :2],
                train_transform=lambda image: image[:1])  # fmt: skip
    assert first(data).inputs.shape == (2, 3, 2, 2)
    assert next(iter(data.train.stream(spec()).micro_batches(0))).inputs.shape == (12, 1, 4, 5)
    data = read(
        saved, inputs="ids", collate=lambda pairs: (torch.cat([ids for ids, _ in pairs]), torch.zeros(2))
    )
    assert first(data).inputs.tolist() == [2**20, 2**20 - 1, 2**20 - 1]


def test_files_are_read_by_the_loaders_of_the_library(tmp_path: Path) -> None:
    file = tmp_path / "points.parquet"
    Dataset.from_dict({"x": [0.5, 1.5], "label": [1, 0]}).to_parquet(file)
    splits = {"train": str(file), "validation": str(file)}
    data = read("parquet", inputs="x", options={"data_files": splits, "cache_dir": str(tmp_path / "cache")})
    assert (first(data).inputs.tolist(), first(data).targets.tolist()) == ([0.5, 1.5], [1, 0])
    assert data.class_names is None


def rows_of(data: Data, split: str) -> list[float]:
    return joined(getattr(data, split).batches(spec(), 100))[0].tolist()


def test_a_train_split_alone_is_cut_into_training_and_validation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As `load_dataset` makes of a file."""
    Dataset.from_dict({"x": [n + 0.5 for n in range(20)], "label": [0, 1] * 10}).to_csv(
        tmp_path / "points.csv"
    )
    files = {"data_files": str(tmp_path / "points.csv"), "cache_dir": str(tmp_path / "cache")}

    def parts(**changes: Any) -> dict[str, list[float]]:
        data = read("csv", inputs="x", options=files, **changes)
        return {split: rows_of(data, split) for split in ("train", "val")}

    every = [n + 0.5 for n in range(20)]
    refusal = r"^data\.val: .* no split 'validation'\. Splits: train; set data\.val=null"
    with pytest.raises(ConfigError, match=refusal):
        parts()
    cut, again, other = parts(val=None), parts(val=None), parts(val=None, split_seed=1)
    assert cut == again != other
    for pair in (cut, other):
        assert (sorted(pair["train"] + pair["val"]), len(pair["val"])) == (every, 4)
    assert parts(train="train[:80%]", val="train[80%:]") == {"train": every[:16], "val": every[16:]}
    assert not caplog.records
    both = parts(train="train[:10]+train[15:]", val="train[12:16]")
    assert both == {"train": every[:10] + every[15:], "val": every[12:16]}
    assert caplog.messages == [
        "data.val=train[12:16]: rows of data.train=train[:10]+train[15:] are among these"
    ]
    caplog.clear()
    parts(val="train")
    assert caplog.messages == ["data.val=train: rows of data.train=train are among these"]
    folded = cut_fold(read("csv", inputs="x", options=files, val=None, val_ratio=0.0), 5, 1, seed=0)
    assert (folded.train.num_samples, folded.val.num_samples, folded.test) == (16, 4, None)


def test_a_data_set_that_streams_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "points.parquet"
    Dataset.from_dict({"x": [0.5, 1.5], "label": [1, 0]}).to_parquet(file)
    options = {"data_files": {"train": str(file), "validation": str(file)}, "streaming": True}
    with pytest.raises(ConfigError, match=r"^data\.path: .* leave out streaming=true, or use data=stream"):
        read("parquet", inputs="x", options=options | {"cache_dir": str(tmp_path / "cache")})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra_val": {"night": "test"}}, r"data.extra_val.night: .* has no split 'test'"),
        ({"val": "test"}, r"data.val: .* has no split 'test'.* Splits: train, validation"),
        ({"train": "train[:80"}, r"data.train: .* no split 'train\[:80'; Unrecognized instruction format"),
        ({"val": "test[:80%]"}, "data.val: .* Unknown split .test.. Should be one of .*'validation'"),
        ({"target": "lable"}, "data.target: there is no column 'lable'; did you mean 'label'"),
        ({"inputs": ["ids", "x"]}, "data.inputs: there is no column 'x'"),
        ({"num_classes": 4}, "data.num_classes: 4 is configured, but the data have 3"),
        ({"path": "pandas"}, "data.path: 'pandas' reads pickles"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str, saved: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**{"path": saved, **changes})


def test_the_numbers_of_classes_mean_the_same_in_all_splits(tmp_path: Path) -> None:
    def split(*names: str) -> Dataset:
        kinds = {"x": Value("float32"), "label": ClassLabel(names=list(names))}
        return Dataset.from_dict({"x": [0.0, 1.0], "label": [0, 1]}, features=Features(kinds))

    sets = {
        "train": split("cat", "dog"),
        "validation": split("dog", "cat"),
        "few": split("cat", "dog", "fish"),
    }
    DatasetDict(sets).save_to_disk(tmp_path)
    refusal = r"^data: class 0 of split 'validation' is 'dog', and in training \['cat'\]"
    with pytest.raises(ConfigError, match=refusal):
        read(str(tmp_path))
    refusal = r"^data: class 2 of split 'few' is 'fish', and in training no class"
    with pytest.raises(ConfigError, match=refusal):
        read(str(tmp_path), val="train", test="few")
    data = read(str(tmp_path), train="few", val="train")  # the first classes may be all that a split has
    assert data.class_names == ("cat", "dog", "fish")


@pytest.mark.parametrize("column", ["image", "number", "label"])
def test_a_missing_value_is_named_or_skipped(saved: str, column: str, tmp_path: Path) -> None:
    whole = datasets.load_from_disk(saved)
    rows = [row | ({column: None} if n == 1 else {}) for n, row in enumerate(whole["train"])]
    DatasetDict(train=Dataset.from_list(rows, features=whole["train"].features)).save_to_disk(tmp_path)
    refusal = rf"sample 1 of data.val cannot be read: column '{column}' has no value"
    with pytest.raises(DataError, match=refusal):
        first(read(str(tmp_path), val="train", inputs=["image", "number"]))
    data = read(str(tmp_path), val="train", inputs=["image", "number"], on_error="skip")
    assert first(data, 3).inputs["number"].tolist() == [0.5, 2.5]


def test_a_file_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    """The library hides the reason behind `An error occurred while generating the dataset`."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 1, "y": 2}\n')
    splits = {"train": str(tmp_path / "a.jsonl"), "validation": str(tmp_path / "b.jsonl")}
    with pytest.raises(ConfigError, match=r"data.path: json cannot be loaded: CastError: Couldn't cast"):
        read("json", options={"data_files": splits, "cache_dir": str(tmp_path / "cache")})


def test_a_data_set_needs_splits(saved: str) -> None:
    with pytest.raises(ConfigError, match="is a Dataset, but a DatasetDict is needed"):
        read(f"{saved}/train")


def test_a_missing_data_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"data.path: .*nothing cannot be loaded: "):
        read(str(tmp_path / "nothing"))


@pytest.mark.slow
def test_a_run_takes_the_number_of_classes_from_the_data_set(saved: str, train: Train) -> None:
    run = train("data=hugging_face", f"data.path={saved}", "data.inputs=image", "data.input_shape=[3,4,5]",
          "data.val=null", "model.hidden=[4]", "tracker=local", "duration=2", "global_batch_size=4",
          "eval_every=2", "save_every=null")  # fmt: skip
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["num_classes"] == 3
