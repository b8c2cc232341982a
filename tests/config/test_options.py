"""Every option of every config group trains two updates on synthetic images.

New options are found in their folders. An option that cannot run on this machine must be refused with the reason.
"""

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import choosing, each, of_extension
from repository import conf_files
from training_runs import Train, UserModule

from hydrant import cli

IMAGES = ("data=synthetic", "data.input_shape=[3,8,8]", "data.num_classes=4", "data.num_samples=64",
          "data.num_val_samples=20")  # fmt: skip
SHORT = ("duration=2", "log_every=1", "eval_every=2", "save_every=2", "global_batch_size=8")

# Overrides that an option needs.
NEEDS = {
    "optimizer/sparse_adam": ("model._target_=pixel_bag.PixelBag", "~model.hidden", "~model.dropout",
                              "allow_targets=[pixel_bag]"),
    "model/timm": ("model.name=test_resnet",),
    "scheduler/lambda": ("scheduler.fn._target_=pixel_bag.halve", "allow_targets=[pixel_bag]"),
    "scheduler/stepped": ("scheduler.fn._target_=torch.optim.lr_scheduler.StepLR", "+scheduler.fn.step_size=1"),
    "scheduler/one_cycle_momentum": ("scheduler.pct_start=0.5",),
    "experiment/vit_fake": ("model.name=vit_tiny_patch16_224",),  # a smaller model
    "model/resnet18": ("optimizer=sgd",),  # a third of its checkpoints
    "model/vit_tiny": ("optimizer=sgd",),
    "model/all_reduce_net": ("data.input_shape=[3,16,16]",),
    "model/none": ("task=supervised", "task._target_=pixel_bag.with_model", "allow_targets=[pixel_bag]",
                   "task.loss._target_=torch.nn.CrossEntropyLoss"),
    "model/two": ("task=two_models",),
    "task/two_models": ("model=two",),
    "task/regression": ("model.num_classes=1",),
    "task/supervised": ("task.loss._target_=torch.nn.CrossEntropyLoss",),
    "precision/fp8": ("precision.emulate=true",),
    "compile/max_autotune": ("model.hidden=[8]",),
    "compile/max_autotune_no_cudagraphs": ("model.hidden=[8]",),
    "compile/blocks": ("model=timm", "model.name=test_vit", "data.input_shape=[3,16,16]", "+model.kwargs.img_size=16"),
    "profiler/torch": ("profiler.wait=0", "profiler.warmup=1", "profiler.active=1"),
    "debug/profile": ("profiler.wait=0", "profiler.warmup=1", "profiler.active=1"),
    "compile/default": ("model.hidden=[8]",),
    "hook/freeze": ("hooks.freeze.stages=[{match: hidden}]",),
    "hook/lr_finder": ("scheduler=exponential", "scheduler.end_ratio=10"),
    "hook/samples": ("hooks.samples.function._target_=pixel_bag.describe", "allow_targets=[pixel_bag]"),
    "hook/stop_if": ("hooks.stop_if.rule='val/loss > 100'",),
    "hook/stop_at": ("hooks.stop_at.time=1h",),
    "averaging/tail": ("averaging.start=50%",),
}  # fmt: skip
CUDA_ONLY = {"precision/tf32": "needs CUDA", "compile/reduce_overhead": "needs CUDA"}
WITH_SHAPE = ("data/digits",)
"""Data sets whose samples have one shape."""
FROM_FILES = ("data/mnist", "data/fashion_mnist", "data/kmnist", "data/emnist", "data/cifar10", "data/cifar100",
              "data/image_folder")  # fmt: skip
OWN_DATA = ("data/csv", "data/dataset", "data/hugging_face", "data/memmap", "data/stream", "data/tensors",
            "data/tokens")  # fmt: skip
OF_TEXT = ("experiment/autoresearch", "hook/text_samples", "model/gpt", "task/language_modeling")
"""Three lists of options that the tests of their parts try."""

PIXEL_BAG = '''
import torch
from torch import nn
from hydrant.tasks import Supervised

def halve(update):
    return 0.5 ** update

def describe(model):
    return {"parameters": str(sum(p.numel() for p in model.parameters())), "noise": torch.rand(3, 4, 4)}

def with_model(model, **settings):
    return Supervised(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)), **settings)

class PixelBag(nn.Module):
    """A bag of quantised pixels: every parameter has sparse gradients."""
    def __init__(self, *, input_shape, num_classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(16, num_classes, mode="sum", sparse=True)

    def forward(self, inputs):
        return self.bag(inputs.flatten(1).mul(4).long().clamp(-8, 7) + 8)
'''


LONG = (
    "compile/blocks", "compile/default", "compile/max_autotune", "compile/max_autotune_no_cudagraphs", "debug/overfit",
    "experiment/all_reduce_net", "experiment/compiled_optimizer", "experiment/distill_vit", "experiment/gpt_tiny",
    "experiment/mup_lr", "experiment/vit_fake", "experiment/vit_tiny_fake", "model/resnet18", "model/vit_tiny",
    "optimizer/kron", "optimizer/lbfgs", "precision/fp8", "profiler/torch", "tracker/mlflow",
)  # fmt: skip
"""These take longest: they compile, read a corpus, start slowly or are large."""


def options() -> list[str]:
    files = conf_files("*/[!_]*.yaml").values()
    # tests/sweeps/test_ready_grids.py runs the grids; wandb_sweep is not a config group.
    paths = [path for path in files if path.parent.name not in ("sweep", "wandb_sweep")]
    return sorted(f"{path.parent.name}/{path.stem}" for path in paths)


def trained_elsewhere(option: str) -> bool:
    """Return whether other default tests train with the option, in tests/optimizers and tests/schedules."""
    return option.startswith(("optimizer/", "scheduler/"))


TOGETHER = ("averaging", "mixing", "parallel", "precision", "profiler", "scheduler")
"""Groups whose options know nothing of each other: a run tries one of each."""


def runs() -> Iterator[Any]:
    """Yield the options of each run, of which only the slow tests make some."""
    tried = [o for o in options() if o not in (*FROM_FILES, *OWN_DATA, *OF_TEXT, "experiment/mnist_amp")]
    by_group = dict[str, list[str]]()
    for place, option in enumerate(tried):
        group = option.partition("/")[0]
        if option in LONG or (trained_elsewhere(option) and place % 3):
            yield pytest.param([option], marks=[pytest.mark.slow, *choosing(option)])
        elif group in TOGETHER and option not in (*NEEDS, *CUDA_ONLY):
            by_group.setdefault(group, []).append(option)
        else:
            yield pytest.param([option], marks=choosing(option))
    for row in zip_longest(*by_group.values()):
        together = list(filter(None, row))
        yield pytest.param(together, marks=choosing(*together))


@pytest.mark.parametrize("chosen", list(runs()), ids=" ".join)
def test_trains_two_updates(
    chosen: list[str],
    train: Train,
    user_module: UserModule,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    option, group, name = chosen[0], *chosen[0].split("/")
    monkeypatch.setenv("WANDB_MODE", "offline")
    user_module("pixel_bag", PIXEL_BAG)
    images = () if group == "experiment" or option in WITH_SHAPE else IMAGES
    tracker = () if group in ("tracker", "debug") else ("tracker=local",)
    choices = [choice.replace("/", "=") for choice in chosen]
    overrides = (*images, *tracker, *SHORT, *NEEDS.get(option, ()), *choices)
    if option in CUDA_ONLY and not torch.cuda.is_available():
        train(*overrides, status=2)
        assert CUDA_ONLY[option] in capsys.readouterr().err
        return
    folder = train(*overrides)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["num_updates"]) == ("finished", 2)
    if group == "compile":
        assert summary["compile"]["graphs"] == (0 if name == "eager" else 1)
        assert summary["compile"]["recompiles"] == summary["compile"]["graph_breaks"] == 0


@pytest.mark.parametrize("option", of_extension(*FROM_FILES))
def test_data_from_files_composes(option: str, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = option.partition("/")[2]
    (workdir / "images" / "train" / "cat").mkdir(parents=True)
    assert cli.main(["train", f"data={name}", "--cfg", "job", "data.root=images"]) == 0
    assert "_target_: hydrant.data." in capsys.readouterr().out


@pytest.mark.extension
def test_any_timm_optimizer_and_model(train: Train) -> None:
    train(*IMAGES, *SHORT, "tracker=local", "model=timm", "model.name=test_vit", "+model.kwargs.img_size=8",
          "+model.kwargs.patch_size=4", "optimizer=timm", "optimizer.name=adan",
          "+optimizer.kwargs.no_prox=true")  # fmt: skip


def names(group: str) -> list[str]:
    return [option.partition("/")[2] for option in options() if option.startswith(f"{group}/")]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", each(names("optimizer"), "optimizer"))
def test_every_optimizer_trains_with_every_scheduler(
    optimizer: str, train: Train, user_module: UserModule
) -> None:
    user_module("pixel_bag", PIXEL_BAG)
    model = NEEDS.get(f"optimizer/{optimizer}", ("model.hidden=[8]",))
    for scheduler in names("scheduler"):
        train(
            *model, *NEEDS.get(f"scheduler/{scheduler}", ()), "tracker=local", "duration=3", "log_every=1",
            "eval_every=3", "save_every=null", f"optimizer={optimizer}", f"scheduler={scheduler}", name=scheduler,
        )  # fmt: skip
