"""What trains on a GPU trains as on the CPU: the options of each config group, and settings that meet the device.

On the stub both use the same kernels. So rows and weights are equal, bit for bit unless a case says otherwise.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu
import pytest
import torch
from marks import slow, slow_but
from repository import options_of
from run_folders import rows, summary
from safetensors.torch import load_file
from torch import nn
from torch.optim import Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop
from torch.utils._pytree import tree_map_only

from hydrant.optimizers.kernels import restore
from hydrant.training.costs import release_memory

Train = Callable[..., Path]

BASE = ("tracker=local", "model.dropout=0", "duration=12", "log_every=1", "eval_every=6", "save_every=6")
DIGITS = (*BASE, "model.hidden=[16]")
CONVNET = (*BASE, "model=convnet", "model.widths=[4,4]", "data=synthetic", "data.input_shape=[3,8,8]")

OPTIMIZERS = sorted(
    {*options_of("optimizer")}
    - {"sparse_adam", "library", "timm"}  # need an embedding, or an optimizer's name
    - {"kron"}  # compiles its step: Triton's kernels compute nothing here
)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16_true")
REFUSED = {("lbfgs", "fp16"), ("sam", "fp16")}
"""An optimizer that evaluates the loss several times does not go with a loss scaler."""
CHAOTIC = {("lbfgs", "bf16_true")}
"""It divides by differences of bfloat16: one rounding grows to half of the loss in 12 updates."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "schedules": (
        "scheduler=wsd",
        "+scheduler@schedules.weight_decay=linear",
        "+scheduler@schedules.betas.0=cosine",
    ),
    "ema": ("averaging=ema",),
    "tail": ("averaging=tail",),
    "clip norm": ("max_grad_norm=0.1",),
    "clip value": ("max_grad_value=0.01",),
    "agc": ("agc=0.01",),
    "accumulation": ("micro_batch_size=16",),
    "growing batches": ("global_batch_size={0:32,6:64}",),
    "skips": ("skip_non_finite=true",),
    "groups": ("param_groups.no_decay=true", "optimizer.weight_decay=0.1"),
    "folds": ("folds=3", "fold=1"),
    "histograms": ("histogram_every=6",),
    "fp16 overflow": ("precision=fp16", "precision.init_scale=1e12"),
    "cutmix": ("mixing=mixup_cutmix", "data=synthetic", "data.input_shape=[3,8,8]"),
    "diagnostics": ("hook=[diagnostics]",),
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / "update_00000012" / "model.safetensors")


@pytest.mark.cuda(stub=True)
def test_the_first_command(assert_equal: Callable[..., None]) -> None:
    with gpu.calls() as calls:
        assert_equal(*DIGITS, "optimizer=adamw", "scheduler=cosine")
    assert calls.launches > 12 * 20


@pytest.fixture
def assert_equal(train: Train, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`assert_equal(*words, rel=0)`: train on the GPU and on the CPU; rows and weights agree.

    With tf32, which the CPU has not, it computes in float32. So does the stub.
    """

    def check(*words: str, rel: float = 0.0) -> None:
        on_gpu = train(*words, name="gpu")
        assert torch.cuda.max_memory_allocated() > 0
        with monkeypatch.context() as patches:
            patches.setattr(torch.cuda, "is_available", lambda: False)
            on_cpu = train(*(word.replace("=tf32", "=fp32") for word in words), name="cpu")
        assert len(rows(on_gpu)) == len(rows(on_cpu)) > 12
        for one, other in zip(rows(on_gpu), rows(on_cpu), strict=True):
            assert one == pytest.approx(other, rel=rel, abs=rel, nan_ok=True)
        expected = weights(on_cpu)
        assert expected.keys() == weights(on_gpu).keys()
        for name, value in weights(on_gpu).items():
            torch.testing.assert_close(value, expected[name], rtol=rel, atol=rel)

    return check


PAIRS = [
    (optimizer, precision)
    for optimizer in OPTIMIZERS
    for precision in PRECISIONS
    if (optimizer, precision) not in REFUSED | CHAOTIC
]
ROUNDS, ROUNDS_WEIGHTS = 1e-4, 5e-2
"""Of an optimizer that takes another implementation on CUDA, such as `foreach`; the second for weights in bfloat16."""


EXACT = [("muon", "bf16"), ("sgd", "fp16")]
TOGETHER = {
    "muon bf16": ("averaging=ema", "micro_batch_size=16", "optimizer.dtype=bfloat16"),  # auto: by the device
    "sgd fp16": ("precision.init_scale=1e12", "max_grad_norm=0.1", "mixing=mixup_cutmix"),
}


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("name", slow_but(("sgd fp16",), TOGETHER))
def test_several_options_together(name: str, assert_equal: Callable[..., None]) -> None:
    optimizer, precision = name.split()
    assert_equal(*DIGITS, f"optimizer={optimizer}", f"precision={precision}", *TOGETHER[name])


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize(("optimizer", "precision"), PAIRS)
def test_optimizers(optimizer: str, precision: str, assert_equal: Callable[..., None]) -> None:
    rounds = ROUNDS_WEIGHTS if precision == "bf16_true" else ROUNDS
    is_exact = (optimizer, precision) in EXACT
    assert_equal(*DIGITS, f"optimizer={optimizer}", f"precision={precision}", rel=0 if is_exact else rounds)


@pytest.mark.slow
@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name: str, assert_equal: Callable[..., None]) -> None:
    assert_equal(*DIGITS, *SETTINGS[name])


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize(
    ("precision", "matmul"), [("tf32", "high"), ("fp32", "highest"), ("bf16", "highest")]
)
def test_the_format_of_float32_products_is_set(precision: str, matmul: str, train: Train) -> None:
    torch.set_float32_matmul_precision("highest" if matmul == "high" else "high")
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = matmul != "high", False
    train(*DIGITS, f"precision={precision}", "duration=1", "eval_every=null")
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 == (matmul == "high")
    assert torch.backends.cudnn.benchmark  # cudnn_benchmark=auto


LARGE = 2**26
"""Bytes that none of these runs needs."""


def take_memory(*_: object, **__: object) -> None:
    torch.empty(LARGE, dtype=torch.uint8, device="cuda")


@pytest.mark.cuda(stub=True)
def test_the_peak_of_memory_is_that_of_the_run(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of an earlier run in the process, of the check of compiled code, or of trials."""
    take_memory()
    words = (*DIGITS, "duration=2", "eval_every=null")
    compiled = (*words, "compile=default", "compile.backend=eager")
    monkeypatch.setattr("hydrant.extensions.compile.checks.check_compiled", take_memory)
    assert 0 < summary(train(*words, name="plain"))["perf"]["peak_memory_gib"] < LARGE / 2**30
    assert 0 < summary(train(*compiled, name="compiled"))["perf"]["peak_memory_gib"] < LARGE / 2**30
    take_memory()
    release_memory()
    assert torch.cuda.max_memory_allocated() < LARGE
    assert torch.cuda.memory_reserved() < LARGE


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("recipe", ["tensorwise", *slow("rowwise")])
def test_emulated_float8(recipe: str, assert_equal: Callable[..., None]) -> None:
    """The layers are under autocast on both: torchao asks for autocast of CUDA alone."""
    assert_equal(*DIGITS, "precision=fp8", f"precision.fp8={recipe}", "precision.emulate=true")


@pytest.mark.cuda
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("kind", [Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop])  # ASGD moves its own
def test_state_returns_to_the_device_where_the_class_keeps_it(kind: Any, capturable: bool) -> None:
    parameter = nn.Parameter(torch.ones(5, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer, restored = (kind([parameter], lr=0.1, capturable=capturable) for _ in range(2))
    optimizer.step()
    on_host = tree_map_only(torch.Tensor, torch.Tensor.cpu, optimizer.state_dict())
    restore(restored, copy.deepcopy(on_host))
    for key, value in optimizer.state[parameter].items():
        assert restored.state[parameter][key].device == value.device, key
