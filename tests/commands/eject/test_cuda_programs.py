"""Ejected programs decide where they run what depends on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ejected import TINY, check_equal, run_program, unchanged_process
from gpu.environment import is_stub
from marks import slow

from hydrant.commands.eject.command import program
from hydrant.config.check import check
from hydrant.config.compose import compose

__all__ = ["unchanged_process"]
pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("unchanged_process")]

CONVNET = "model=convnet model.widths=[4,8] model.dropout=0"
FOLDER = Path("outputs/ejected")


def written(words: str) -> str:
    return program(check(compose([*TINY, *words.split()])))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        f"{CONVNET} precision=bf16",
        *slow(CONVNET, "optimizer=adagrad", f"{CONVNET} precision=fp16 averaging=ema", "optimizer=sgd"),
    ],
)
def test_a_program_does_not_depend_on_the_machine_that_writes_it(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = written(words)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert written(words) == on_gpu


@pytest.mark.parametrize(
    ("words", "is_converted"),
    [
        (f"{CONVNET} precision=bf16", True),
        ("optimizer=adagrad model.dropout=0", False),
        *slow(
            (CONVNET, False),
            (f"{CONVNET} memory_format=channels_last", True),
            (f"{CONVNET} precision=bf16 memory_format=contiguous_format", False),
            (f"{CONVNET} precision=bf16 averaging=ema", True),
            (f"{CONVNET} precision=fp16 precision.init_scale=1e4", True),
            ("precision=bf16 model.dropout=0", False),
        ),
    ],
)
def test_a_program_trains_on_a_gpu_as_the_run_does(words: str, is_converted: bool, workdir: Path) -> None:
    assert torch.cuda.is_available()
    # cuDNN's fastest kernels add in any order, so that a run differs from itself. Those of the stub do not.
    text = check_equal(words if is_stub() else f"{words} deterministic=true", workdir)
    assert ("convert_to_channels_last(model)" in text) == is_converted


@pytest.mark.parametrize("optimizer", ["nadam", "adagrad", *slow("radam", "adamax", "rmsprop", "adamw")])
def test_a_continued_program_leaves_counts_of_steps_on_the_host(
    optimizer: str, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del workdir
    text = written(f"optimizer={optimizer} model.hidden=[8] log_every=1 averaging=ema")
    run_program(text)
    whole = torch.load(FOLDER / "last.pt", map_location="cpu", weights_only=True)
    states: list[dict[str, Any]] = []
    step = torch.optim.Optimizer.load_state_dict

    def recorded(self: Any, state: Any) -> None:
        step(self, state)
        states.extend(self.state.values())

    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", recorded)
    (FOLDER / "last.pt").unlink()
    line = next(line for line in text.splitlines() if line.startswith("    while num_updates < NUM_UPDATES"))
    with pytest.raises(ZeroDivisionError):
        run_program(text.replace(line, f"{line}\n        1 / (num_updates - 5)"))
    run_program(text)
    assert states
    assert {state["step"].device.type for state in states} == {"cpu" if optimizer != "adamw" else "cuda"}
    continued = torch.load(FOLDER / "last.pt", map_location="cpu", weights_only=True)
    for name, value in whole["model"].items():
        assert torch.equal(value, continued["model"][name]), name
