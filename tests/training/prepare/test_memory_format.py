"""Convolutions in channels_last compute the same and resume exactly; cuDNN times its algorithms."""

from typing import Any

import pytest
import torch
from marks import slow
from run_folders import assert_same_state, rows, weights
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import Train, whole_and_resumed

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.errors import ConfigError
from hydrant.training.distributed.world import Parallel, World
from hydrant.training.loop import make_update
from hydrant.training.prepare.build import convert_to_channels_last, prepare, uses_channels_last
from hydrant.training.prepare.micro_batch import scratch_trainer

CONVNET = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=4", "log_every=1",
           "save_every=2")  # fmt: skip
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


class Formats(TorchDispatchMode):
    """Records whether the inputs of convolutions, and their results, are channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self.results.append(result.is_contiguous(memory_format=torch.channels_last))
        return result


def test_convolutions_and_the_optimizer_s_state_are_channels_last() -> None:
    # With one input channel both formats are the same.
    rgb = ("data=synthetic", "data.input_shape=[3,8,8]", "data.num_samples=256", "data.num_val_samples=64")
    plan = prepare(check(compose([*CONVNET, *rgb, "memory_format=channels_last"])))
    with scratch_trainer(plan) as trainer, Formats() as formats:
        make_update(trainer, measure=True)
        [optimizer] = [entry.optimizer for entry in trainer.optimizers.entries.values()]
        filters = [p for p in trainer.task.parameters() if p.ndim == 4]
        of_filters = [v for p in filters for v in (p, p.grad, *optimizer.state[p].values()) if v.ndim == 4]
    assert formats.results
    assert all(formats.results)
    assert len(of_filters) == 4 * len(filters)
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in of_filters)


@pytest.mark.parametrize("more", [(), *slow((("averaging=ema", "optimizer=sgd"),))])
def test_a_run_in_channels_last_computes_the_same_and_resumes_exactly(
    more: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*CONVNET, *more)
    plain = train(*words, name="plain")
    whole, resumed = whole_and_resumed(train, monkeypatch, (*words, "memory_format=channels_last"), 2)
    assert rows(whole) == rows(resumed)
    assert_same_state(weights(whole), weights(resumed))
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(whole)[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("device", "precision", "model", "expected"),
    [
        (CUDA, "bf16", nn.Conv2d(3, 4, 3), True),
        (CUDA, "fp16", nn.Conv2d(3, 4, 3), True),
        (CUDA, "fp32", nn.Conv2d(3, 4, 3), False),
        (CUDA, "bf16", nn.Linear(3, 4), False),
        (CPU, "bf16", nn.Conv2d(3, 4, 3), False),
    ],
)
def test_auto_is_channels_last_where_it_is_faster(
    device: torch.device, precision: str, model: nn.Module, expected: bool
) -> None:
    formats = instantiate(check(compose([f"precision={precision}"])), "precision", CPU)
    parallel = Parallel(World(0, 0, 1, CPU))
    assert uses_channels_last("auto", model, formats, parallel, device) is expected
    assert uses_channels_last("channels_last", model, formats, parallel, device)
    assert not uses_channels_last("contiguous_format", model, formats, parallel, device)


def test_only_filters_are_converted() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 3), nn.Conv3d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.Linear(2, 2))
    before = {name: p.clone() for name, p in model.named_parameters()}
    convert_to_channels_last(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.is_contiguous() is (name != "2.weight")


@pytest.mark.parametrize(
    ("words", "expected"), [((), True), (("cudnn_benchmark=false",), False), (("deterministic=true",), False)]
)
def test_cudnn_times_its_algorithms_unless_runs_are_deterministic(
    words: tuple[str, ...], expected: bool
) -> None:
    with scratch_trainer(prepare(check(compose(["tracker=local", *words])))):
        assert torch.backends.cudnn.benchmark is expected


def test_timing_excludes_deterministic_runs() -> None:
    with pytest.raises(ConfigError, match=r"^cudnn_benchmark: .*deterministic=true excludes"):
        check(compose(["deterministic=true", "cudnn_benchmark=true"]))
