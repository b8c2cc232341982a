"""`hydrant predict` writes what a run predicts: the numbers of `evaluate`, with names."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydrant
from hydrant import cli
from hydrant.extensions.predict import prediction
from hydrant.extensions.predict.arrays import Arrays

IMAGES = {"cat": (60, 6), "=dog": (190, 5)}  # class: mean color, number of images

Predict = Callable[..., Path]


def train(folder: Path, *words: str) -> hydrant.Run:
    return hydrant.train(hydrant.compose(["tracker=local", "duration=6", *words]), folder=folder)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> hydrant.Run:
    folder = tmp_path_factory.mktemp("digits") / "run"
    return train(folder, "data=digits", "model.hidden=[8]", "averaging=ema", "eval_batch_size=100")


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> hydrant.Run:
    root = tmp_path_factory.mktemp("pets")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name, (mean, count) in IMAGES.items():
            (folder := root / split / name).mkdir(parents=True)
            for image in range(count):
                pixels = rng.normal(mean, 30, (20, 24, 3)).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{image}.png")
    words = ("data=image_folder", f"data.root={root}", "data.input_shape=[3,8,8]", "data.num_workers=0",
             "model=mlp", "model.hidden=[4]", "global_batch_size=4")  # fmt: skip
    return train(root / "run", *words)


@pytest.fixture
def predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Return a function that calls `hydrant predict` and returns the file that it writes."""
    monkeypatch.chdir(tmp_path)

    def run_command(run: hydrant.Run, *words: str, out: str = "out.csv", status: int = 0) -> Path:
        assert cli.main(["predict", str(run.folder), *words, "--out", out]) == status
        return tmp_path / out

    return run_command


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_a_split_gives_the_accuracy_of_evaluate(digits: hydrant.Run, predict: Predict) -> None:
    for weights in ("last", "ema"):
        rows = rows_of(predict(digits, "val", "--weights", weights))
        assert [row["index"] for row in rows] == [str(index) for index in range(360)]
        accuracy = np.mean([row["prediction"] == row["target"] for row in rows])
        evaluated = digits.evaluate(weights="ema" if weights == "ema" else "last")
        assert accuracy == pytest.approx(evaluated["val/accuracy"])
    other = rows_of(predict(digits, "val", "--weights", "ema", "--batch-size", "7"))
    for row, expected in zip(other, rows, strict=True):
        assert row["prediction"] == expected["prediction"]
        assert float(row["probability"]) == pytest.approx(float(expected["probability"]), rel=1e-5)


def test_probabilities_of_classes(digits: hydrant.Run, predict: Predict) -> None:
    arrays = np.load(predict(digits, "val", out="out.npz"))
    assert {name: arrays[name].shape for name in arrays} == {
        "index": (360,), "class_names": (10,), "target": (360,), "prediction": (360,), "probability": (360,),
        "probabilities": (360, 10), "logits": (360, 10),
    }  # fmt: skip
    expected = torch.from_numpy(arrays["logits"]).softmax(dim=1).numpy()
    assert np.allclose(arrays["probabilities"], expected, atol=1e-6)
    lines = predict(digits, "val", "--probabilities", out="out.jsonl").read_text().splitlines()
    for line, predicted, row in zip(lines, arrays["prediction"], arrays["probabilities"], strict=True):
        content = json.loads(line)
        assert content["prediction"] == str(predicted)
        assert [np.float32(content[f"probability/{name}"]) for name in range(10)] == row.tolist()


@pytest.mark.parametrize(
    ("out", "first"), [("out.csv", None), ("out.jsonl", None), ("out.npz", None), ("out.csv", 5)]
)
def test_a_command_that_fails_leaves_the_file_that_was_there(
    out: str, first: int | None, digits: hydrant.Run, predict: Predict, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Stopped after two batches, or if a batch has another shape than the first one."""
    file, batches = predict(digits, "val", out=out), prediction.predict
    before = file.read_bytes()

    def two(*arguments: Any) -> Iterator[Arrays]:
        whole = batches(*arguments)
        yield next(whole)
        second = next(whole)
        if first:
            second["probabilities"] = second["probabilities"][:, :first]
        yield second
        raise KeyboardInterrupt

    monkeypatch.setattr(prediction, "predict", two)
    predict(digits, "val", out=out, status=2 if first else 130)
    error = "'probabilities' of a sample is float32 [10] in one batch and float32 [5]"
    assert (error if first else "stopped by SIGINT") in capsys.readouterr().err
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    if first:  # nor are they printed or returned
        assert cli.main(["predict", str(digits.folder), "val"]) == 2
        with pytest.raises(hydrant.ConfigError, match="in one batch and"):
            hydrant.predict(digits, "val")


def test_tensors_are_prepared_as_in_an_evaluation(digits: hydrant.Run, predict: Predict) -> None:
    expected = [row["prediction"] for row in rows_of(predict(digits, "val"))]
    from hydrant.data import digits as read_digits

    inputs = read_digits().val.inputs
    np.save("a.npy", inputs.double().numpy())
    np.savez("b.npz", any=inputs.numpy())
    torch.save({"inputs": inputs, "targets": None}, "c.pt")
    np.save("d.npy", inputs.numpy())
    for file in ("a.npy", "b.npz", "c.pt", Path("d.npy").rename("D.NPY").name):
        rows = rows_of(predict(digits, file))
        assert [row["prediction"] for row in rows] == expected
        assert rows[0].keys() == {"index", "prediction", "probability"}


def test_images_are_named_and_sorted(pets: hydrant.Run, predict: Predict, tmp_path: Path) -> None:
    root = Path(pets.config["data"]["root"])
    split = rows_of(predict(pets, "val", "--probabilities"))
    assert [row["file"] for row in split] == [
        str(root / "val" / name / f"{image}.png")
        for name in sorted(IMAGES)
        for image in range(IMAGES[name][1])
    ]
    assert {row["target"] for row in split} == {"cat", "'=dog"}  # no formula
    folder = rows_of(predict(pets, str(root / "val"), "--probabilities"))
    for row, expected in zip(folder, split, strict=True):
        assert row == {key: value for key, value in expected.items() if key != "target"}
    (tmp_path / "photos").symlink_to(root / "val" / "cat")
    names = [row["file"] for row in rows_of(predict(pets, "photos", str(root / "val" / "cat" / "0.png")))]
    assert names == [*(f"photos/{image}.png" for image in range(6)), str(root / "val" / "cat" / "0.png")]


def test_a_damaged_image_is_left_out_if_the_data_say_so(
    pets: hydrant.Run, predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := tmp_path / "photos").mkdir()
    good = Path(pets.config["data"]["root"], "val", "cat", "0.png").read_bytes()
    for name in "abcde":
        (folder / f"{name}.png").write_bytes(b"damaged" if name == "c" else good)
    predict(pets, "photos", "--batch-size", "2", status=1)
    printed = capsys.readouterr().err
    assert "photos/c.png cannot be read" in printed
    out = predict(pets, "photos", "--batch-size", "2", "data.on_error=skip")
    assert [row["file"] for row in rows_of(out)] == [f"photos/{name}.png" for name in "abde"]
    printed = capsys.readouterr()
    assert "4 predictions of 5 files, without 1 damaged" in printed.out


@pytest.mark.parametrize("change", ["rename", "add"])
def test_renamed_classes_are_noticed(
    change: str, pets: hydrant.Run, predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(pets.config["data"]["root"])
    photo = root / "val" / "cat" / "0.png"
    before = rows_of(predict(pets, str(photo)))
    copy = tmp_path / "renamed"
    shutil.copytree(root, copy)
    for split in ("train", "val"):
        if change == "rename":
            (copy / split / "cat").rename(copy / split / "kitten")
        else:
            shutil.copytree(copy / split / "cat", copy / split / "lynx")
    moved = f"data.root={copy}"
    if change == "rename":
        assert rows_of(predict(pets, str(photo), moved)) == before, "the run's own names"
        assert cli.main(["evaluate", str(pets.folder), moved]) == 2
        assert "class 1 was 'cat' and is now 'kitten'" in capsys.readouterr().err
    predict(pets, "val", moved, status=2)
    messages = {"rename": "class 1 was 'cat' and is now 'kitten'; rename them back", "add": "the data have 3"}
    assert messages[change] in capsys.readouterr().err


def test_a_run_with_renamed_classes_continues_only_if_it_is_told_to(
    pets: hydrant.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    copy, words = tmp_path / "copy", ["tracker=local", "duration=6", f"resume={pets.folder}", "name=more"]
    shutil.copytree(Path(pets.config["data"]["root"]), copy)
    words += ["data=image_folder", f"data.root={copy}", "data.input_shape=[3,8,8]", "data.num_workers=0",
              "model=mlp", "model.hidden=[4]", "global_batch_size=4"]  # fmt: skip
    for split in ("train", "val"):
        (copy / split / "cat").rename(copy / split / "kitten")
    assert cli.main(["train", *words]) == 2
    assert "data: the data have other classes than the run learned: class 1 was" in capsys.readouterr().err
    assert cli.main(["train", *words, "resume_strict=false"]) == 0


def test_without_a_file_the_same_rows_are_printed(
    digits: hydrant.Run, predict: Predict, capsys: pytest.CaptureFixture[str]
) -> None:
    written = predict(digits, "val").read_text()
    capsys.readouterr()
    assert cli.main(["predict", str(digits.folder), "val"]) == 0
    assert capsys.readouterr().out == written


def test_nothing_is_computed_for_a_pipe_that_is_closed(
    digits: hydrant.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hydrant.extensions.predict.prediction.output_status", lambda: 141)
    assert cli.main(["predict", str(digits.folder), "val", "--batch-size", "10"]) == 141
    assert len(capsys.readouterr().out.splitlines()) == 11


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "predict what? Give a run, and then files"),
        (["nope"], "inputs: there is no file or folder nope, nor such a split; splits: train, val"),
        (["cat.png"], "inputs: this run cannot read cat.png; it reads tensors (.pt, .npz, .npy), its splits"),
        (["wrong.npy"], "inputs: wrong.npy has the shape [3, 8], but the run needs (N, 1, 8, 8)"),
        (["int.npy"], "inputs: int.npy has numbers of the type int, but the run needs float; convert"),
        (["val", f"task.nope={'long' * 99}"], "task.nope"),
        (["val", "--out", "a.txt"], "--out: unknown ending '.txt'. Options: .csv, .jsonl, .npz"),
        (["val", "--out", "file/a.csv"], "--out: file/a.csv cannot be written"),
        (["val", "--batch-size", "0"], "--batch-size: needs a whole number of 1 or more or null, not 0"),
        (["val", "--weights", "bset"], "--weights: unknown weights 'bset'; did you mean 'best'?"),
    ],
)
def test_what_cannot_be_predicted_is_named(
    words: list[str], message: str, digits: hydrant.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("cat.png").touch()
    Path("file").touch()
    np.save("wrong.npy", np.zeros((3, 8)))
    np.save("int.npy", np.zeros((3, 1, 8, 8), dtype=np.int64))
    assert cli.main(["predict", str(digits.folder), *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob(".*.tmp"))
