"""Ejected files of every model train as their configs do."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_rounding import CudaRounding
from eject_files import save_tensors, spoil
from ejected import check_equal, rows_of, unchanged_process
from marks import slow

__all__ = ["unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")

NOISE = (
    "data=synthetic data.num_classes=5 data.num_samples=150 data.num_val_samples=60 duration=3 eval_every=2"
)


@pytest.mark.parametrize(
    "words",
    [
        *slow("data.input_shape=[3,16,16] model=airbench model.widths=[4,4,4]"),
        "data.input_shape=[3,16,16] model=airbench model.widths=[4,4,4] optimizer=lbfgs optimizer.max_iter=2 "
        "micro_batch_size=8 mixing=mixup_cutmix",  # of which a layer is frozen
        *slow(
            "data.input_shape=[3,16,16] model=airbench model.widths=[4,4,4] model.views=mirror averaging=ema "
            "precision=bf16"
        ),
        "data.input_shape=[3,16,16] model=timm model.name=vit_tiny_patch16_224 +model.kwargs.img_size=16 "
        "+model.kwargs.patch_size=8 +model.kwargs.depth=2 +model.kwargs.embed_dim=12 mixing=mixup_cutmix",
        *slow(
            "data.input_shape=[1,16,16] model=timm model.name=test_resnet averaging=ema micro_batch_size=16"
        ),
    ],
)
def test_models_of_images(words: str, workdir: Path) -> None:
    check_equal(f"{NOISE} {words}", workdir)


@pytest.mark.parametrize(
    "words", ["model=conv1d", "model=gru", *slow("model=gru model.bidirectional=false averaging=ema")]
)
def test_models_of_signals(words: str, workdir: Path) -> None:
    check_equal(f"data=mnist1d data.num_samples=500 duration=3 eval_every=2 {words}", workdir)


@pytest.mark.parametrize("optimizer", ["sam", "lbfgs optimizer.max_iter=2"])
def test_schedulers_that_step_of_optimizers_that_need_a_closure(optimizer: str, workdir: Path) -> None:
    stepped = "scheduler=stepped scheduler._target_=torch.optim.lr_scheduler.StepLR +scheduler.step_size=2"
    check_equal(f"optimizer={optimizer} {stepped} duration=4", workdir)


def test_a_program_rounds_as_its_run_where_the_device_divides_in_another_way(workdir: Path) -> None:
    with CudaRounding():
        check_equal("limit_val_samples=49 averaging=ema micro_batch_size=8 skip_non_finite=true", workdir)


def test_the_optimizer_of_a_program_does_not_see_an_update_that_overflows(workdir: Path) -> None:
    """Its state would begin with it: the fused SGD of torch leaves a momentum of uninitialized memory.

    `deterministic` fills such memory with NaN.
    """
    words = "optimizer=sgd precision=fp16 precision.init_scale=1e12 deterministic=true"
    check_equal(words, workdir)


@pytest.mark.parametrize(
    "words",
    [
        "task.class_weights=balanced",
        "task.class_weights=[1,2,1,1,0.5,1,1,1,1,3] task.label_smoothing=0.1 mixing=mixup",
    ],
)
def test_weights_of_classes(words: str, workdir: Path) -> None:
    assert "CLASS_WEIGHTS = (" in check_equal(words, workdir)


@pytest.mark.parametrize(
    "words",
    [
        *slow(""),
        "micro_batch_size=8 task.class_weights=[1,2,1,1,0.5] averaging=ema",
        *slow(
            "task.label_smoothing=0.1 precision=bf16 best.metric=val/exact_match",
            "task.class_weights=[1,2,1,1,0.5] task.label_smoothing=0.1 compile=aot_eager",
        ),
    ],
)
def test_several_labels_for_a_sample(words: str, workdir: Path) -> None:
    for split, count in {"train": 60, "val": 30}.items():
        save_tensors(Path(f"{split}.pt"), "labels", count)
    data = "data=tensors data.train=train.pt data.val=val.pt data.input_shape=[4] data.num_classes=5"
    check_equal(f"{data} limit_train_samples=50 limit_val_samples=20 task.multi_label=true {words}", workdir)


@pytest.mark.parametrize(
    "words",
    [
        "model=convnet model.widths=[4,8] log_every=1 micro_batch_size=8 averaging=ema",
        *slow("max_grad_norm=0.1 patience=1", "max_skipped=0"),  # both fail
    ],
)
def test_updates_of_nan_that_are_skipped(words: str, workdir: Path) -> None:
    for split, count in {"train": 70, "val": 30}.items():
        save_tensors(Path(f"{split}.pt"), "images", count)
    spoil(Path("train.pt"), 2)
    data = "data=tensors data.train=train.pt data.val=val.pt data.input_shape=[3,8,8] data.num_classes=5"
    sizes = "global_batch_size=16 limit_train_samples=null limit_val_samples=20 duration=12"
    check_equal(f"{data} {sizes} skip_non_finite=true {words}", workdir)
    rows = rows_of(workdir / "outputs" / "ejected")
    assert "max_skipped" in words or 0 < max(row.get("optim/num_skipped", 0) for row in rows) < 12
