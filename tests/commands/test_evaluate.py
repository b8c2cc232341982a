"""`hydrant evaluate` prints the metrics that training has logged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import of_extension
from training_runs import Train

from hydrant import cli

RUN = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")


def test_evaluate_prints_the_metrics_of_the_run(
    trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = {
        row["num_updates"]: row
        for row in map(json.loads, (trained / "metrics.jsonl").read_text().splitlines())
    }
    for where, num_updates in ((trained, 12), (trained / "checkpoints" / "update_00000006", 6)):
        assert cli.main(["evaluate", str(where), "--json"]) == 0
        metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert metrics["num_updates"] == num_updates
        for key in ("val/loss", "val/accuracy"):
            assert metrics[key] == rows[num_updates][key]
    # The last batch is smaller.
    assert cli.main(["evaluate", str(trained), "eval_batch_size=7", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert metrics["val/accuracy"] == pytest.approx(rows[12]["val/accuracy"])
    assert metrics["val/loss"] == pytest.approx(rows[12]["val/loss"], rel=1e-5)
    assert cli.main(["evaluate", str(trained), "data.val_ratio=0.5"]) == 0
    assert "899 samples" in capsys.readouterr().out
    assert cli.main(["evaluate", str(trained), "optimizers.a.optimizer.lr=0.1"]) == 0
    assert "not used, because nothing is trained: optimizers.a" in caplog.text


def test_splits_by_name(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(trained / "checkpoints" / "last"), "--split", "train"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-3].startswith("outputs/")
    assert "1,437 samples" in printed
    assert "train/accuracy" in printed
    assert cli.main(["evaluate", str(trained), "--split", "test"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --split: the data have no test split, only train, val; data.test_ratio gives one"
    )
    assert cli.main(["evaluate", str(trained), "--split", "vall"]) == 2
    assert "unknown split 'vall'; did you mean 'val'?" in capsys.readouterr().err
    assert cli.main(["evaluate", str(trained), "--split", "test", "data.test_ratio=0.2"]) == 0
    assert "360 samples" in capsys.readouterr().out


@pytest.mark.slow
def test_a_renamed_checkpoint_with_overrides(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluated(*words: str) -> dict[str, Any]:
        assert cli.main(["evaluate", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    plain = evaluated(str(trained))
    renamed = (trained / "checkpoints" / "update_00000012").rename(trained / "checkpoints" / "the_one")
    metrics = evaluated(str(renamed))
    assert metrics == plain | {"checkpoint": str(renamed)}
    limited = evaluated(str(renamed), "debug=smoke")  # it limits the samples and keeps the model of the run
    assert limited["val/loss"] != plain["val/loss"]
    assert evaluated(str(renamed), "debug=smoke", "limit_val_samples=null") == metrics
    assert evaluated(str(renamed), "experiment=digits_convnet") == metrics  # with the widths of the run
    assert cli.main(["evaluate", str(renamed), "model=mlp"]) == 2
    assert "model: the weights in" in capsys.readouterr().err


def test_overrides_change_the_config_of_the_run(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data=synthetic", "data.input_shape=[1,8,8]", "data.num_classes=3", "data.num_samples=64",
           "data.num_val_samples=50", "global_batch_size=8")  # fmt: skip
    folder = train(*RUN, *words, "model.hidden=[8]")
    for overrides, num_samples in (((), 50), (("data.num_val_samples=20",), 20), (("data=synthetic",), 50)):
        assert cli.main(["evaluate", str(folder), *overrides]) == 0
        assert f"{num_samples} samples" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["evaluate", *of_extension("export")])
def test_a_damaged_config_is_named(command: str, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for content in (b"\xff", b"a: ${", b"[" * 100_000, b"x: &x [*x]"):
        (trained / "config.yaml").write_bytes(content)
        assert cli.main([command, str(trained)]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"error: {trained / 'config.yaml'} is damaged (")
        assert printed.err.count("\n") == 1


def test_a_class_without_an_output_in_a_later_sample_is_named(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Public test sets have the label -1 where the answer is secret; `train` samples only the first sample."""
    for name, last in (("train", 2), ("test", -1)):
        targets = torch.tensor([0, 1, 2, last])
        torch.save({"inputs": torch.rand(4, 3), "targets": targets}, workdir / f"{name}.pt")
    files = ("data=tensors", "data.train=train.pt", "data.val=train.pt", "data.test=test.pt")
    shapes = ("data.input_shape=[3]", "data.num_classes=3", "model.hidden=[4]", "global_batch_size=4")
    folder = train(*files, *shapes, "tracker=local", "duration=1")
    assert cli.main(["evaluate", str(folder), "--split", "test"]) == 2
    error = capsys.readouterr().err
    assert "model: has no output for the class -1" in error
    assert "task.ignore_index" in error
