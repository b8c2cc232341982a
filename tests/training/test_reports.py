"""What a run says about its micro-batches: what depends on the number of ranks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from marks import of_extension
from ranks import run_on_ranks
from run_folders import assert_close_rows, summary
from training_runs import Train

from hydrant import cli, seeding
from hydrant.clock import Steps
from hydrant.data import NoMixing, StreamSpec
from hydrant.training.reports import log_micro_batch_size

WORDS = ("tracker=local", "global_batch_size=32", "duration=2", "eval_every=null", "save_every=null")
MLP, CONVNET = (*WORDS, "model.hidden=[8]", "model.dropout=0"), (*WORDS, "model=convnet", "model.widths=[4]")
NO_MIXING = NoMixing(num_classes=2, micro_batch_size=2)
MIXED = (*CONVNET, "model.dropout=0.1", "mixing=mixup_cutmix")


@pytest.mark.parametrize(
    ("size", "micro", "mixing", "depending"),
    [(32, 16, 1, "batch norm, mixing"), (14, 7, NO_MIXING, "batch norm"), (2, 1, NO_MIXING, "batch norm")],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_only_several_ranks_say_what_depends_on_their_number(
    size: int, micro: int, mixing: Any, depending: str, num_ranks: int, caplog: pytest.LogCaptureFixture
) -> None:
    spec = StreamSpec(
        0, Steps.constant(size), micro if num_ranks == 2 else size, 0, num_ranks, torch.device("cpu")
    )
    plan = SimpleNamespace(
        config={"micro_batch_size": None}, spec=spec, mixing=mixing, world=SimpleNamespace(is_rank_zero=True)
    )
    state = SimpleNamespace(micro_batch_size=None, num_updates=1)
    trainer: Any = SimpleNamespace(plan=plan, state=state, task=torch.nn.BatchNorm1d(2))
    seeding.seed_micro_step(0, 0, 0, spec.device)  # nothing draws after it
    with caplog.at_level("INFO", "hydrant"):
        log_micro_batch_size(trainer)
    expected = (
        f"{depending}: computed per micro-batch ({micro} samples), whose size depends on the number of ranks, "
        "unless micro_batch_size is given"
    )
    assert caplog.messages == ([expected] if num_ranks == 2 else [])
    assert state.micro_batch_size == spec.micro_batch_size


@pytest.mark.extension
@pytest.mark.slow
def test_a_run_on_two_ranks_says_what_depends_on_their_number(workdir: Path) -> None:
    run_on_ranks(2, workdir, [("train", "name=mixed", *MIXED)])
    lines = (workdir / "outputs" / "mixed" / "train.log").read_text().splitlines()
    [line] = [line for line in lines if "per micro-batch" in line]
    assert "INFO random layers, batch norm, mixing: computed per micro-batch (16 samples)" in line
    assert line.endswith("unless micro_batch_size is given")


@pytest.mark.parametrize("words", [MLP, *of_extension((MIXED,), ((*MIXED, "micro_batch_size=16"),))])
def test_a_run_on_one_rank_says_nothing(
    words: tuple[str, ...], train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*words)
    assert "micro-batch" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_continues_on_other_ranks_keeps_its_micro_batches_or_warns(
    workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("tracker=local", "global_batch_size=32", "model.hidden=[8]", "model.dropout=0.3", "duration=6",
             "log_every=2", "eval_every=6", "save_every=2", "keep_last=9")  # fmt: skip
    run_on_ranks(2, workdir, [("train", "name=two", *words)])
    half = "checkpoints/update_00000002"
    assert cli.main(["train", "name=continued", f"resume=outputs/two/{half}", *words]) == 0
    assert_close_rows(workdir / "outputs" / "two", workdir / "outputs" / "continued")
    again = "resume=outputs/continued/checkpoints/update_00000004"  # the second time on one rank
    assert cli.main(["train", "name=again", again, *words]) == 0
    assert_close_rows(workdir / "outputs" / "two", workdir / "outputs" / "again")
    assert cli.main(["train", "name=one", *words]) == 0
    assert "before" not in capfd.readouterr().out.replace("as before", "")
    run_on_ranks(2, workdir, [("train", "name=split", f"resume=outputs/one/{half}", *words)])
    log = (workdir / "outputs" / "split" / "train.log").read_text()
    assert log.count("random layers: computed per micro-batch (16 samples, before 32)") == 1  # of rank 0
    assert " WARNING random layers" in log
    assert summary(workdir / "outputs" / "split")["status"] == "finished"
