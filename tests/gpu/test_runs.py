"""Whole runs on a GPU: models and data, checkpoints that change the device, kills, and commands on finished runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from faulty_model import TWO_RANKS, fault, provide_faulty_model
from marks import slow
from repository import ROOT
from run_folders import rows, summary
from safetensors.torch import load_file
from training_runs import run_command

from hydrant import cli
from hydrant.training import loop
from hydrant.training.trainer import Trainer

Train = Callable[..., Path]

BASE = ("tracker=local", "log_every=1", "eval_every=6", "save_every=6")
DIGITS = (*BASE, "model.hidden=[16]")

MODELS: dict[str, tuple[str, ...]] = {
    "gpt": (
        "experiment=gpt_tiny",
        "hook=[]",
        "model.num_layers=1",
        "limit_val_samples=16",
        "limit_train_samples=256",
    ),
    "convnet": ("model=convnet", "model.widths=[4,8]", "model.dropout=0"),
    "channels last": ("model=convnet", "model.widths=[4,8]", "model.dropout=0", "precision=bf16"),
    "vit": ("experiment=vit_tiny_fake", "compile=eager"),
    "two models": (
        "experiment=two_models",
        "model.modules.first.dropout=0",
        "model.modules.second.dropout=0",
    ),
    "distillation": ("experiment=distill_vit", "compile=eager"),
}
ROUNDED = {"gpt": 1e-4, "vit": 1e-3, "distillation": 1e-3, "channels last": 2e-2}
"""Attention takes other operations on CUDA, and bf16 rounds them; convolutions are of another memory format."""


def weights(folder: Path, num_updates: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"update_{num_updates:08d}" / "model.safetensors")


def assert_equal_rows(one: Path, other: Path, num_updates: int, rel: float = 0.0) -> None:
    assert len(rows(one)) == len(rows(other)) >= num_updates
    for row, expected in zip(rows(one), rows(other), strict=True):
        assert row == pytest.approx(expected, rel=rel, abs=rel)


def assert_equal_runs(one: Path, other: Path, num_updates: int, rel: float = 0.0) -> None:
    assert_equal_rows(one, other, num_updates, rel)
    values = weights(other, num_updates)
    for name, value in weights(one, num_updates).items():
        torch.testing.assert_close(value, values[name], rtol=rel, atol=rel)


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, train: Train, on_cpu: Train) -> None:
    words = (*MODELS[name], *BASE, "duration=6")
    assert_equal_runs(train(*words, name="gpu"), on_cpu(*words, name="cpu"), 6, ROUNDED.get(name, 0.0))


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
def test_images_that_workers_read(train: Train, on_cpu: Train, tmp_path: Path) -> None:
    from data_files import write_images

    for split, count in (("train", 20), ("val", 8)):
        for number, label in enumerate(("cat", "dog")):
            write_images(tmp_path / "images" / split / label, count, seed=number)
    words = ("data=image_folder", f"data.root={tmp_path}/images", "data.num_workers=2",
             "data.input_shape=[3,16,16]", "model=convnet", "model.widths=[4]", "model.dropout=0",
             "global_batch_size=8", "duration=12", *BASE)  # fmt: skip
    assert_equal_runs(train(*words, name="gpu"), on_cpu(*words, name="cpu"), 12)


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("optimizer", ["adamw", *slow("sgd", "nadam", "muon", "lion", "soap")])
def test_a_checkpoint_continues_on_the_other_device(optimizer: str, train: Train, on_cpu: Train) -> None:
    words = (*DIGITS, "model.dropout=0", "scheduler=constant", f"optimizer={optimizer}", "averaging=ema")
    whole = on_cpu(*words, "duration=9", "eval_every=3", "save_every=3", name="whole")
    for start, duration in ((on_cpu, 3), (train, 6), (on_cpu, 9)):
        words = (*words, f"duration={duration}", "eval_every=3", "save_every=3", "resume_strict=false")
        folder = start(*words, name="moved")
    assert_equal_runs(folder, whole, 9, 1e-5 if optimizer in ("nadam", "soap") else 0.0)


KILLER = """
import os, signal
from pathlib import Path

class Killer:
    def after_update(self, trainer, num_updates):
        if num_updates == 9 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.cuda
@pytest.mark.parametrize(
    "words",
    [
        "precision=fp16 model.dropout=0.5",
        "precision=fp16 precision.init_scale=1e12 averaging=ema",
        "precision=bf16 model.dropout=0.5 optimizer=muon",
        "mixing=mixup micro_batch_size=16 model.dropout=0.2 data=synthetic",
    ],
)
def test_a_killed_run_continues_bit_for_bit(words: str, workdir: Path) -> None:
    Path("killer.py").write_text(KILLER)
    hook = ("allow_targets=[killer]", "+hooks.killer._target_=killer.Killer")

    def start(name: str) -> int:
        command = [sys.executable, str(ROOT / "train.py"), f"name={name}", *DIGITS, "duration=15", *words.split(),
                   *hook]  # fmt: skip
        variables = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(workdir), os.environ.get("PYTHONPATH", "")])
        }
        return subprocess.run(command, env=variables, check=False).returncode

    assert start("killed_run") == -signal.SIGKILL
    assert start("killed_run") == start("whole") == 0
    assert_equal_runs(workdir / "outputs/killed_run", workdir / "outputs/whole", 15)


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
def test_commands_on_a_finished_run(
    train: Train, on_cpu: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = train(*DIGITS, "duration=6", name="run")

    def evaluated() -> str:
        assert cli.main(["evaluate", str(folder)]) == 0
        return capsys.readouterr().out

    def predicted(name: str) -> str:
        assert cli.main(["predict", str(folder), "val", "--out", name]) == 0
        return Path(name).read_text()

    capsys.readouterr()
    on_gpu, table = evaluated(), predicted("gpu.csv")
    assert cli.main(["export", str(folder), "--format", "torch_export", "--output", "gpu.pt2"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert evaluated() == on_gpu
    assert predicted("cpu.csv") == table
    inputs = torch.randn(4, 1, 8, 8)
    exported = torch.export.load("gpu.pt2").module()(inputs)
    assert exported.shape == (4, 10)


@pytest.mark.slow
@pytest.mark.cuda(memory_gib=0.25)
def test_auto_finds_the_micro_batch_that_fits(train: Train) -> None:
    folder = train("tracker=local", "data=synthetic", "data.input_shape=[3,32,32]", "data.num_samples=4096",
                   "model=convnet", "global_batch_size=4096", "micro_batch_size=auto", "duration=1",
                   "eval_batch_size=16", "limit_val_samples=16")  # fmt: skip
    size = yaml.safe_load((folder / "config.yaml").read_text())["micro_batch_size"]
    assert 16 <= size < 4096


@pytest.mark.slow
@pytest.mark.cuda(devices=2, stub=True)
@pytest.mark.parametrize("words", ["parallel=ddp", "parallel=ddp micro_batch_size=8", "parallel=fsdp"])
def test_two_gpus_train_as_one(words: str, train: Train, workdir: Path) -> None:
    base = (*DIGITS, "model.dropout=0", "duration=6")
    command = [sys.executable, str(ROOT / "train.py"), "name=two", *base, *words.split(),
               "parallel.num_processes=2"]  # fmt: skip
    subprocess.run(command, check=True)
    assert_equal_rows(workdir / "outputs/two", train(*base, name="one"), 6, 1e-4)


@pytest.mark.slow
@pytest.mark.cuda(devices=2, stub=True)
def test_a_rank_that_hangs_is_named(workdir: Path) -> None:
    words = (*provide_faulty_model(workdir), "parallel.timeout_seconds=8", *TWO_RANKS, *fault("sleep", 1))
    done = run_command(*words, cwd=workdir)
    assert done.returncode == 1
    assert "rank 1 hangs: no progress for 8 s (parallel.timeout_seconds); rank 1 is at forward" in done.stderr
    assert summary(workdir / "outputs/run")["error"]["type"] == "RankHung"


@pytest.mark.slow
@pytest.mark.cuda(devices=2, stub=True)
def test_jobs_of_a_sweep_share_the_gpus(workdir: Path) -> None:
    command = [sys.executable, str(ROOT / "train.py"), "--multirun", "hydra/launcher=local", "name=sweep", *DIGITS,
               "duration=6", "seed=0,1,2"]  # fmt: skip
    subprocess.run(command, check=True)
    folders = sorted(path.parent for path in (workdir / "multirun/sweep").glob("*/summary.json"))
    assert [summary(folder)["status"] for folder in folders] == ["finished"] * 3
    assert {summary(folder)["environment"]["gpu"] for folder in folders} == {"NVIDIA H100 80GB HBM3"}


@pytest.mark.slow
@pytest.mark.cuda(level="calls")
@pytest.mark.parametrize("mode", ["default", "reduce_overhead"])
@pytest.mark.parametrize("optimizer", [False, True])
def test_compiled_code_is_built_and_launched(mode: str, optimizer: bool, workdir: Path) -> None:
    """Inductor and ptxas build for the GPU, launches have valid sizes, and what a graph captures is legal."""
    words = ("name=run", *DIGITS, "duration=6", f"compile={mode}", f"compile.optimizer={optimizer}")
    # A process of its own: PyTorch logs graphs for pytest, and at the level "calls" it cannot print their tensors.
    command = [sys.executable, str(ROOT / "train.py"), *words, "compile.check=false"]
    subprocess.run(command, env=os.environ | {"GPU_STUB_TRACE": "calls.txt"}, check=True)
    calls = [line.split("\t") for line in Path("calls.txt").read_text().splitlines()]
    assert [detail for kind, detail, _ in calls if kind == "illegal"] == []
    assert any(kind == "launch" and "triton" in detail for kind, detail, _ in calls)
    assert any(kind == "capture begin" for kind, *_ in calls) == (mode == "reduce_overhead")
    assert summary(workdir / "outputs/run")["compile"]["graphs"] >= 1


@pytest.mark.cuda
def test_no_synchronisation_between_log_points_on_cuda(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    def strict(trainer: Trainer, *, measure: bool) -> Any:
        torch.cuda.set_sync_debug_mode("error" if trainer.state.num_updates > 1 else "default")
        try:
            return make_update(trainer, measure=measure)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    make_update = loop.make_update
    monkeypatch.setattr(loop, "make_update", strict)
    train(*DIGITS, "duration=8", "log_every=8", "max_grad_norm=1.0")


@pytest.mark.cuda
def test_fp8_on_the_device(train: Train) -> None:
    words = (*BASE, "model.hidden=[32]", "duration=6")
    exact, fp8 = (train(*words, f"precision={name}", name=name) for name in ("bf16", "fp8"))
    assert rows(exact)[-1]["train/loss"] == pytest.approx(rows(fp8)[-1]["train/loss"], rel=0.1)
