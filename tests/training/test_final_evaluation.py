"""`test_at_end`: the best checkpoint on the test split, once, without a change of anything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from marks import of_extension, slow
from run_folders import assert_same_state, rows, summary, training, weights
from training_runs import Train, train_in_child

from hydrant import cli
from hydrant.runs import execute as execution
from hydrant.training import reports
from hydrant.training.trainer import Trainer

WORDS = ("tracker=local", "data=digits", "data.test_ratio=0.2", "limit_train_samples=256", "model.hidden=[8]",
         "averaging=ema", "averaging.decay=0.9", "duration=12", "eval_every=4", "save_every=4", "log_every=4",
         "optimizer.lr=0.05")  # fmt: skip


def without_test(folder: Path) -> list[dict[str, Any]]:
    """Return the other rows, without the seconds that compilation took."""
    kept = (row for row in rows(folder) if "test/loss" not in row)
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in kept]


def evaluated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert cli.main(["evaluate", *words, "--split", "test", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def best_at(monkeypatch: pytest.MonkeyPatch, num_updates: int) -> None:
    """Let the evaluation after an update be the best."""
    evaluate = reports.evaluate_run

    def fake_evaluation(trainer: Trainer) -> dict[str, float]:
        return evaluate(trainer) | {"val/accuracy": float(trainer.state.num_updates == num_updates)}

    monkeypatch.setattr(reports, "evaluate_run", fake_evaluation)


@pytest.mark.parametrize(
    "words", [(), *slow(*of_extension((("compile=aot_eager",),)), (("precision=bf16", "optimizer=sgd"),))]
)
def test_the_test_is_of_the_best_checkpoint_and_changes_nothing_else(
    words: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best_at(monkeypatch, 8)
    plain = train(*WORDS, *words, name="plain")
    folder = train(*WORDS, *words, "test_at_end=true", name="tested")
    assert "test of update 8, the best val/accuracy: test/loss " in capsys.readouterr().out
    row = rows(folder)[-1]
    assert len(rows(folder)) == len(rows(plain)) + 1
    assert without_test(folder) == without_test(plain)
    assert (row["num_updates"], row["test/num_updates"]) == (12, 8)
    assert summary(folder)["metrics"]["test/accuracy"] == row["test/accuracy"]
    for state in (weights, training):
        assert_same_state(state(folder), state(plain))
    best, last = str(folder / "checkpoints" / "best"), str(folder)
    if not words:
        for part, prefix in (("model", "test"), ("ema", "test_ema")):
            values = evaluated(capsys, best, "--weights", part)
            assert values["test/loss"] == row[f"{prefix}/loss"] != evaluated(capsys, last)["test/loss"]


def test_a_run_that_is_killed_before_its_test_completes_it(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best_at(monkeypatch, 8)
    words = (*WORDS, "test_at_end=true")
    whole = train(*words, name="whole")

    def killed(trainer: Trainer, checkpoint: Path | None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(execution, "_test_best", killed)
        folder = train(*words, name="killed", status=130)
    assert without_test(folder) == rows(folder)
    assert rows(train(*words, name="killed")) == rows(whole)
    train(*words, name="killed")
    assert "already finished" in capsys.readouterr().out


def test_a_finished_run_is_tested_later(train: Train) -> None:
    folder = train(*WORDS, name="run")
    train(*WORDS, "test_at_end=true", name="run", status=2)
    train(*WORDS, "test_at_end=true", "resume_strict=false", name="run")
    assert [row["num_updates"] for row in rows(folder) if "test/loss" in row] == [12]


@pytest.mark.parametrize(
    ("words", "num_updates", "tested"),
    [
        (("patience=1",), 12, 8),  # it ends early
        *of_extension((("hook=stop_at", "hooks.stop_at.metric='val/loss>=0'"), 4, 4)),
        (("eval_every=null", "best.metric=val/loss", "best.mode=min"), 12, 12),  # nothing is the best
        (("save_every=null",), 12, 8),  # the best one is saved all the same
        (("log_every=1",), 12, 12),  # the best one could not be written
    ],
)
def test_every_end_is_tested(
    words: tuple[str, ...],
    num_updates: int,
    tested: int,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if words[0] != "eval_every=null":
        best_at(monkeypatch, 8)
    if words[0] == "log_every=1":
        monkeypatch.setattr(execution.Session, "_best_checkpoint", lambda _: None)
    length = "duration=16" if words[0].startswith("patience") else "seed=0"
    row = rows(train(*WORDS, "test_at_end=true", length, *words))[-1]
    assert (row["num_updates"], row["test/num_updates"]) == (num_updates, tested)
    if words[0] == "log_every=1":
        assert "test of the last update, 12, because the best, 8, is not saved: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), *of_extension((("parallel=fsdp",),))])
def test_ranks_test_the_best_checkpoint_too(words: tuple[str, ...], train: Train, workdir: Path) -> None:
    settings = (*WORDS, "test_at_end=true", "micro_batch_size=32", "optimizer=sgd", "optimizer.lr=3",
                "scheduler=constant")  # fmt: skip
    one = rows(train(*settings, name="one"))[-1]
    train_in_child(workdir, "two", *settings, *words, "parallel.num_processes=2")
    two = rows(workdir / "outputs" / "two")[-1]
    assert two["test/num_updates"] == one["test/num_updates"] < two["num_updates"]
    for key in ("test/loss", "test/accuracy", "test_ema/loss"):
        assert two[key] == pytest.approx(one[key], rel=1e-4)
