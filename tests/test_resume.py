"""Where a run goes on or starts from: damaged checkpoints, other configs, weights from elsewhere, a full disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from checks import assert_same_state, interrupt_at, rows, summary, training, weights
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from hydrant import cli
from hydrant.checkpoint import storage

Train = Callable[..., Path]
SHORT = ("tracker=local", "model.hidden=[16]", "duration=8", "log_every=1", "eval_every=4", "save_every=2",
         "keep_last=9")  # fmt: skip


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.fixture
def half(train: Train, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after update 6."""
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)
        return train(*SHORT, name="half", status=130)


def test_a_damaged_newest_one_costs_updates_and_nothing_else(half: Path, train: Train) -> None:
    flip(half / "checkpoints" / "update_00000006" / "training.safetensors")
    train(*SHORT, name="half")
    log = (half / "train.log").read_text()
    assert "update_00000006/training.safetensors holds other bytes than were written" in log
    assert "continuing from outputs/half/checkpoints/update_00000004 at update 4" in log
    assert (half / "checkpoints" / "damaged_update_00000006").is_dir()
    whole = train(*SHORT, name="whole")
    assert rows(half) == rows(whole)
    assert_same_state(weights(half), weights(whole))
    assert_same_state(training(half), training(whole))


def test_a_run_with_none_that_is_whole_is_refused(
    half: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (half / "checkpoints").glob("update_*"):
        (path / "model.safetensors").unlink()
    train(*SHORT, name="half", status=1)
    assert "error: no checkpoint in outputs/half/checkpoints is whole: " in capsys.readouterr().err.replace(
        f"{half.parents[1]}/", ""
    )


def test_a_damaged_best_one_is_told(half: Path, train: Train) -> None:
    best = summary(half)["best"]["num_updates"]
    assert best < 6
    flip(half / "checkpoints" / "best" / "model.safetensors")
    train(*SHORT, name="half")
    log = (half / "train.log").read_text()
    assert "the best checkpoint so far is damaged: " in log
    assert f"update_{best:08d}/model.safetensors holds other bytes" in log


def test_a_changed_config_goes_on_where_it_may(
    half: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ("resume_strict=false", "optimizer.lr=0.5", "optimizer.weight_decay=0.25", "duration=10")
    train(*SHORT, *changed, name="half")
    told = capsys.readouterr().out
    assert "duration ('8' there, 10 here)" in told or "duration (8 there, 10 here)" in told
    assert "optimizer.weight_decay (0.01 there, 0.25 here)" in told
    assert "resume_strict=false: the run goes on with another config: " in told
    [group] = training(half)["optimization"]["optimizers"]["main"]["param_groups"]
    assert group["weight_decay"] == 0.25
    assert 0 < group["lr"] < 0.5  # the new one, late on the new curve
    assert summary(half)["num_updates"] == 10
    train(*SHORT, *changed, "duration=12", name="half")  # finished, and to go on for longer
    assert [row["num_updates"] for row in rows(half)] == list(range(13))


def test_a_finished_run_without_a_checkpoint_is_not_begun_again(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*SHORT, "save_every=null", "duration=1")
    folder = train(*words, name="finished")
    before = (folder / "metrics.jsonl").read_bytes()
    train(*words, "duration=2", "resume_strict=false", name="finished", status=2)
    told = capsys.readouterr().err.splitlines()[-1]
    assert "resume: " in told
    assert "holds a finished run of another config (duration (1 there, 2 here)) and no checkpoint" in told
    assert (folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model.hidden=[32]"],
            "resume: the weights in .* are another model's: hidden.0.0.weight is (16, 64) there",
        ),
        (["optimizer=sgd"], "update_00000006 holds the state of AdamW, which is no state of SGD"),
        (["param_groups.no_decay=true"], "has other param groups of AdamW than this run"),
        (["+optimizers.all.parts=null"], "has the optimizers main; here are all"),
        (["scheduler=plateau"], "does not fit this run: KeyError: 'main.lr'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_all_the_same(
    words: list[str], told: str, half: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    status = 1 if words == ["scheduler=plateau"] else 2
    before = {path: path.read_bytes() for path in (half / "checkpoints").rglob("*") if path.is_file()}
    train(*SHORT, *words, "resume_strict=false", name="half", status=status)
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(part in last for part in told.split(".*"))
    assert {path: path.read_bytes() for path in before} == before


def test_first_weights_come_from_a_file_too(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("duration=1", "optimizer=sgd", "optimizer.lr=0", "save_every=1", "eval_every=null")
    first = train(*SHORT, "duration=2", name="first")
    file = first / "checkpoints" / "last" / "model.safetensors"
    copied = train(*SHORT, *start, f"init_from={file}", name="copied")
    assert_same_state(weights(copied), weights(first))

    wider = (*SHORT, *start, "model.hidden=[16,8]", f"init_from={file}")
    train(*wider, name="wider", status=2)
    refused = capsys.readouterr().err.splitlines()[-1]
    assert "init_from: the weights in" in refused
    assert "classifier.weight is (10, 16) there, (10, 8) here" in refused
    partly = train(*wider, "init_strict=false", name="wider")
    shown = capsys.readouterr().out
    assert "hidden.1.0.weight is absent there, (8, 16) here" in shown
    assert "classifier.weight is (10, 16) there, (10, 8) here" in shown
    fresh = train(*SHORT, *start, "model.hidden=[16,8]", name="fresh")
    kept = {name: value for name, value in weights(partly).items() if name.startswith("hidden.0.")}
    assert_same_state(kept, {name: weights(first)[name] for name in kept})
    assert_same_state(weights(partly)["classifier.weight"], weights(fresh)["classifier.weight"])

    save_file({"other": torch.ones(1)}, "other.safetensors")
    train(*SHORT, *start, "init_from=other.safetensors", "init_strict=false", name="other", status=2)
    assert "init_from: none of the weights in" in capsys.readouterr().err
    Path("weights.pt").touch()
    train(*SHORT, *start, "init_from=weights.pt", name="other", status=2)
    assert "init_from: weights.pt is no safetensors file; give one, or a run or" in capsys.readouterr().err
    Path("junk.safetensors").write_text("junk")
    train(*SHORT, *start, "init_from=junk.safetensors", name="other", status=1)
    assert "junk.safetensors cannot be read (" in capsys.readouterr().err


TIMM = ("tracker=local", "model=timm", "model.name=test_vit", "data=synthetic", "data.input_shape=[3,160,160]",
        "data.num_classes=10", "data.num_samples=4", "data.num_val_samples=2", "global_batch_size=2", "duration=1",
        "optimizer=sgd", "optimizer.lr=0", "eval_every=null", "save_every=1",
        "init_from=timm:test_vit.r160_in1k")  # fmt: skip


def test_first_weights_come_from_timm_too(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    save_file(timm.create_model("test_vit").state_dict(), workdir / "hub.safetensors")

    def download(*_: Any, **__: Any) -> str:
        return str(workdir / "hub.safetensors")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", download)
    train(*TIMM, status=2)
    assert "head.weight is (1000, 64) there, (10, 64) here" in capsys.readouterr().err
    folder = train(*TIMM, "init_strict=false")
    theirs = load_file(workdir / "hub.safetensors")
    ours = {name: value for name, value in weights(folder).items() if not name.startswith("head.")}
    assert_same_state(ours, {name: theirs[name] for name in ours})
    assert "not loaded from timm:test_vit.r160_in1k: head.bias" in capsys.readouterr().out

    def offline(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Cannot find the file on the Hub. Check your connection.")

    monkeypatch.setattr("timm.models._hub.hf_hub_download", offline)
    train(*TIMM, name="offline", status=2)
    told = "init_from: timm cannot load test_vit.r160_in1k's weights: Cannot find the file on the Hub"
    assert told in capsys.readouterr().err
    assert cli.main(["train", *TIMM, "init_from=timm:test_vitt"]) == 2
    assert "init_from: timm cannot load test_vitt's weights: Unknown model" in capsys.readouterr().err


@pytest.mark.parametrize("full_at", [[2, 4, 6], [4, 6, 8]])
def test_training_goes_on_when_the_disk_is_full(
    full_at: list[int], train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = storage.save_file

    def full_disk(tensors: Any, file: Path, entry: Any) -> None:
        if int(file.parent.name[-8:]) in full_at:
            raise OSError(28, "No space left on device")
        save(tensors, file, entry)

    monkeypatch.setattr(storage, "save_file", full_disk)
    ends_well = 8 not in full_at
    folder = train(*SHORT, "eval_every=8", status=0 if ends_well else 1)
    assert len(rows(folder)) == 9
    assert (folder / "train.log").read_text().count("training goes on") == 1
    assert summary(folder)["status"] == ("finished" if ends_well else "failed")
    saved = {path.name for path in (folder / "checkpoints").glob("update_*")}
    assert saved == {f"update_{n:08d}" for n in range(2, 9, 2) if n not in full_at}
    if not ends_well:
        last = "update_00000008 cannot be written: No space left on device; update_00000002 is the last whole one"
        assert last in capsys.readouterr().err.splitlines()[-1]
        assert json.loads((folder / "summary.json").read_text())["error"]["type"] == "CheckpointError"
