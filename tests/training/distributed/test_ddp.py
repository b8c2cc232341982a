"""A run on several ranks equals the run on one rank, by DDP and whoever starts the ranks. Real processes, gloo."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from faulty_model import TORCHRUN, TWO_RANKS
from repository import ROOT
from run_folders import assert_close_rows, assert_same_state, rows, rows_without_compile, summary, weights
from torch import distributed, nn
from training_runs import train_in_child

from hydrant.training.distributed.ddp import Ddp
from hydrant.training.distributed.world import World

pytestmark = pytest.mark.usefixtures("without_gpu")  # more ranks than GPUs

WORDS = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3",
         "limit_val_samples=37", "micro_batch_size=16")  # fmt: skip


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one rank."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("static_graph", [False, True])
def test_gradients_are_exchanged_in_the_last_micro_batch_alone(static_graph: bool) -> None:
    """Exchanging them in each gives the same numbers, so only the number of exchanges shows it."""
    entered = list[str]()

    class Task(nn.Module):
        def no_sync(self) -> AbstractContextManager[None]:
            entered.append("no_sync")
            return nullcontext()

    settings = {"num_processes": 2, "max_restarts": 0, "timeout_seconds": 9.0, "sync_batch_norm": False,
                "bucket_cap_mb": 25.0, "gradient_as_bucket_view": True, "find_unused_parameters": False,
                "split_muon": False, "static_graph": static_graph}  # fmt: skip
    ddp = Ddp(World(0, 0, 2, torch.device("cpu")), **settings)
    for is_last in (False, False, True):
        with ddp.gradient_sync(Task(), is_last):
            pass
    assert entered == ([] if static_graph else ["no_sync"] * 2)


@pytest.mark.slow
def test_ranks_make_the_run_of_one_rank_whoever_starts_them(workdir: Path) -> None:
    """Two ranks of Hydrant or of torchrun: one run folder, and the samples and losses of one rank."""
    words = (*WORDS, "model.dropout=0.3", "averaging=ema")
    one = train_in_child(workdir, "one", *words)
    two = train_in_child(workdir, "two", *words, *TWO_RANKS)
    train = [str(ROOT / "train.py"), "name=torchrun", *words]
    subprocess.run([*TORCHRUN, *train], cwd=workdir, check=True, capture_output=True, timeout=300)
    launched = workdir / "outputs" / "torchrun"
    assert_close_rows(one, two)
    assert rows(two) == rows(launched)
    assert_same_state(weights(two), weights(launched))
    assert sorted(p.name for p in (workdir / "outputs").iterdir()) == ["one", "torchrun", "two"]
    assert summary(two)["status"] == summary(launched)["status"] == "finished"


@pytest.mark.extension
@pytest.mark.slow
@pytest.mark.parametrize("words", [("parallel.num_processes=4",), (*TWO_RANKS, "compile=aot_eager"),
                                   (*TWO_RANKS, "precision=bf16", "compile=aot_eager")])  # fmt: skip
def test_more_ranks_compiled_and_in_bfloat16(words: tuple[str, ...], workdir: Path) -> None:
    common = tuple(word for word in words if not word.startswith("parallel."))
    one = train_in_child(workdir, "one", *WORDS, *common)
    several = train_in_child(workdir, "several", *WORDS, *words)
    for a, b in zip(rows(one), rows_without_compile(several), strict=True):
        tolerance = 0.02 if "precision=bf16" in words else 1e-5
        assert {k: v for k, v in a.items() if k in b} == pytest.approx(b, rel=tolerance, abs=tolerance)


@pytest.mark.extension
@pytest.mark.slow
def test_a_task_with_several_losses(workdir: Path) -> None:
    plain = tuple(word for word in WORDS if not word.startswith("model."))
    words = (*plain, "model=two", "task=two_models", "best.metric=val/loss", "best.mode=min")
    one = train_in_child(workdir, "one", *words)
    assert_close_rows(one, train_in_child(workdir, "two", *words, *TWO_RANKS))


@pytest.mark.extension
@pytest.mark.slow
def test_a_model_with_an_all_reduce_is_compiled_in_one_graph(workdir: Path) -> None:
    """The sum of each rank is over its samples and those of the other rank."""
    words = ("experiment=all_reduce_net", "tracker=local", "duration=3", "log_every=1", "eval_every=3")
    eager = train_in_child(workdir, "eager", *words, "compile=eager", *TWO_RANKS)
    compiled = train_in_child(workdir, "compiled", *words, "compile=aot_eager", *TWO_RANKS)
    figures = summary(compiled)["compile"]
    assert (figures["graphs"], figures["graph_breaks"], figures["recompiles"]) == (1, 0, 0)
    for a, b in zip(rows(eager), rows(compiled), strict=True):
        assert a == pytest.approx({key: b[key] for key in a}, rel=1e-5, abs=1e-6)
