"""The plain loop of docs/guides/own-loop.md trains a saved run on as the run itself does."""

from pathlib import Path

import pytest
import torch
from documentation import blocks, commands
from marks import slow
from run_folders import assert_same_state, weights
from training_runs import Train, interrupt_at

PAGE = "docs/guides/own-loop.md"


@pytest.mark.parametrize("words", ["", *slow("optimizer=sgd optimizer.momentum=0.9 model=convnet")])
def test_the_loop_makes_the_updates_of_the_resumed_run(
    words: str, train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*commands(PAGE)[0].removeprefix("uv run train.py ").split(), "duration=40", *words.split()]
    with monkeypatch.context() as patch:
        interrupt_at(patch, 20)
        saved = train(*command, name="saved", status=130)
    [program] = blocks(PAGE, "python")
    exec(compile(program, "own_loop.py", "exec"), {})
    trained_on = torch.load("trained_on.pt")
    train(*command, name="saved")
    assert_same_state(trained_on, weights(saved))
