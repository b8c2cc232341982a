"""Ranks with different work or different results make the run of one rank. Three real ranks, started once."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from ranks import run_on_ranks
from run_folders import assert_close_rows, rows, summary
from training_runs import Train

from hydrant import cli

pytestmark = [pytest.mark.slow, pytest.mark.extension]

BASE = ("tracker=local", "allow_targets=[rank_parts]", "duration=4", "log_every=1", "eval_every=2", "save_every=2",
        "limit_val_samples=40", "eval_batch_size=2", "global_batch_size=12", "micro_batch_size=2")  # fmt: skip
NET = (*BASE, "~model.hidden", "~model.dropout")
SPARSE = (*BASE, "model.hidden=[8]", "task=two_models", "task._target_=rank_parts.Sparse",
          "skip_non_finite=true")  # fmt: skip
COUNTED = (*SPARSE, "task._target_=rank_parts.Counted")
REGRESSION = (*BASE, "model.hidden=[8]", "model.num_classes=1", "task=regression", "optimizer.lr=1e-2")
NOISY = (*NET, "model._target_=rank_parts.Noisy")
NORMED = (*NET, "model._target_=rank_parts.Normed", "averaging=ema", "averaging.decay=0.5", "log_every=4")
MIDDLE = (*NOISY, "log_every=4")
LBFGS = (*BASE, "model.hidden=[8]", "optimizer=lbfgs", "optimizer.max_iter=3", "duration=2")
AUTO = (*NET, "model._target_=rank_parts.Greedy", "micro_batch_size=auto", "eval_every=null", "duration=2")
COMPILED = (*NET, "model._target_=rank_parts.Differing", "compile=default", "compile.backend=eager", "duration=2",
            "compile.on_failure=fallback", "eval_every=null")  # fmt: skip
PLAIN = (*BASE, "model.hidden=[8]")
DDP_OPTIONS = {
    "buckets": ("parallel.gradient_as_bucket_view=false", "parallel.bucket_cap_mb=0.0001"),
    "static": ("parallel.static_graph=true",),
    "unused": ("parallel.find_unused_parameters=true",),
}
DAMAGED = ("tracker=local", "data=image_folder", "data.root=images", "data.input_shape=[3,8,8]", "data.on_error=skip",
        "data.num_workers=0", "model.hidden=[8]", "global_batch_size=3", "duration=2", "best.metric=val/loss",
        "best.mode=min")  # fmt: skip
HALF = "checkpoints/update_00000002"

PARTS = '''
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from hydrant.batch import Outcome
from hydrant.tasks import Task

RANK = os.environ.get("RANK")

class Net(nn.Module):
    def __init__(self, *, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, num_classes))

    def forward(self, inputs):
        return self.layers(inputs)

class Noisy(Net):
    """Draws random numbers in evaluation too."""
    def forward(self, inputs):
        return super().forward(inputs + torch.randn_like(inputs))

class Normed(Net):
    def __init__(self, *, input_shape, num_classes):
        super().__init__(input_shape=input_shape, num_classes=num_classes)
        self.layers.insert(2, nn.BatchNorm1d(8))

class Greedy(Normed):
    """Is out of memory with more than 2 samples. With `calls_collective`, its forward calls an all-reduce."""
    calls_collective = False

    def forward(self, inputs):
        if self.calls_collective:
            dist.all_reduce(torch.zeros(1))
        if len(inputs) > 2 and torch.is_grad_enabled() and not inputs.is_meta:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(inputs)

class Reducing(Greedy):
    calls_collective = True

class Differing(Net):
    """Returns other logits on rank 1 when it is compiled."""
    def forward(self, inputs):
        logits = super().forward(inputs)
        return 2 * logits if RANK == "1" and torch.compiler.is_compiling() else logits

class Sparse(Task):
    """Only some classes are targets, so a micro-batch may have none, and the mean over it is NaN."""
    def __init__(self, model, *, metrics):
        super().__init__(model, metrics)

    def forward(self, batch):
        losses = F.cross_entropy(self.model(batch.inputs), batch.targets, reduction="none")
        counts = (batch.targets < 2).float()
        mean = (losses * counts).sum() / counts.sum()
        return Outcome({"cross_entropy": mean}, {"double": 2 * mean.detach()}, losses.detach(), int(counts.sum()))

class Counted(Sparse):
    """Counts the targets with a tensor."""
    def forward(self, batch):
        losses = F.cross_entropy(self.model(batch.inputs), batch.targets, reduction="none")
        counts = batch.targets < 2
        mean = (losses * counts).sum() / counts.sum().clamp(min=1)
        return Outcome({"cross_entropy": mean}, {"double": 2 * mean.detach()}, losses.detach(), counts.sum())
'''


def provide(folder: Path) -> None:
    """Write the module above, and images, of which one of three for evaluation is damaged."""
    (folder / "rank_parts.py").write_text(PARTS)
    for name in ("train/a/0", "train/a/1", "train/b/0", "val/a/0", "val/a/1", "val/b/0"):
        path = folder / "images" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    path.write_bytes(b"damaged")


def named(name: str, *words: str) -> tuple[str, ...]:
    return ("train", f"name={name}", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folders of several runs on three ranks."""
    folder = tmp_path_factory.mktemp("three")
    provide(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        assert cli.main(named("one", *MIDDLE)) == 0
    failing = {"damaged": 1, "reducing": 2}
    run_on_ranks(3, folder, [
        named("few", *NOISY, "limit_val_samples=4", "eval_batch_size=512"),
        named("damaged", *DAMAGED),
        named("sparse", *SPARSE),
        named("counted", *COUNTED),
        named("regression", *REGRESSION),
        named("lbfgs", *LBFGS),
        named("middle", *MIDDLE),
        named("one_to_three", *MIDDLE, f"resume=outputs/one/{HALF}"),
        named("normed", *NORMED),
        named("normed_again", *NORMED, f"resume=outputs/normed/{HALF}"),
        named("auto", *AUTO),
        named("reducing", *AUTO, "model._target_=rank_parts.Reducing"),
        named("compiled", *COMPILED),
        *(named(name, *PLAIN, *words) for name, words in DDP_OPTIONS.items()),
    ], failing)  # fmt: skip
    return folder


@pytest.fixture
def one(train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train on one rank, in this process."""
    provide(workdir)
    monkeypatch.syspath_prepend(workdir)
    return train


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("few", (*NOISY, "limit_val_samples=4", "eval_batch_size=1")),  # 4 samples on 3 ranks
        ("sparse", SPARSE),
        ("counted", SPARSE),  # numbers and tensors count alike
        ("regression", REGRESSION),
        ("lbfgs", LBFGS),
        *((name, PLAIN) for name in DDP_OPTIONS),
    ],
)
def test_ranks_make_the_run_of_one_rank(name: str, words: tuple[str, ...], folder: Path, one: Train) -> None:
    rel = 1e-3 if name == "lbfgs" else 1e-5  # a line search depends on rounded losses
    assert_close_rows(one(*words), folder / "outputs" / name, rel)


def test_a_rank_without_a_readable_sample_ends_all_ranks(folder: Path) -> None:
    error = summary(folder / "outputs" / "damaged")["error"]
    assert error["type"] == "DataError"
    assert "on 1 of 3 rank(s)" in error["message"]


def test_the_saved_batch_norm_statistics_are_those_that_were_evaluated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of the averaged model, and after a resume."""
    whole, again = (folder / "outputs" / name for name in ("normed", "normed_again"))
    assert rows(whole) == rows(again)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "rank_parts")
    for weights, split in (("model", "val"), ("ema", "val_ema")):
        capsys.readouterr()
        assert cli.main(["evaluate", "outputs/normed", "--json", "--weights", weights]) == 0
        evaluated: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert evaluated["val/loss"] == pytest.approx(rows(whole)[-1][f"{split}/loss"], rel=1e-5)


def test_another_number_of_ranks_continues_between_two_log_points(folder: Path, one: Train) -> None:
    whole = one(*MIDDLE)
    last = f"resume={folder}/outputs/middle/{HALF}"
    for other in (folder / "outputs" / "one_to_three", one(*MIDDLE, last, name="three_to_one")):
        assert_close_rows(whole, other)


def test_an_automatic_micro_batch_size_is_the_same_on_all_ranks(folder: Path) -> None:
    saved = yaml.safe_load((folder / "outputs" / "auto" / "config.yaml").read_text())
    assert saved["micro_batch_size"] == 2


@pytest.mark.extension
def test_all_ranks_fall_back_to_eager_if_one_cannot_compile(folder: Path) -> None:
    assert "Continuing eager" in (folder / "outputs" / "compiled" / "train.log").read_text()  # of rank 0
