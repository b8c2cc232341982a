"""In a notebook: a bar, pictures below the cell, a table, and two runs in one kernel."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TRAIN = """
import hydrant
words = ["tracker=local", "data=digits", "model.hidden=[8]", "optimizer=sgd", "duration=6", "eval_every=3"]
run = hydrant.train(hydrant.compose([*words, "pictures=end"]))
"""
OWN = """
from torch import nn
second = hydrant.train(hydrant.compose(words), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
second.config["model"]["type"]
"""
WRONG = "hydrant.compose(['optimizer=sdg'])"
FAILS = """
class Broken(nn.Module):
    def __init__(self, num_calls):
        super().__init__()
        self.linear, self.num_calls = nn.Linear(64, 10), num_calls
    def forward(self, inputs):
        self.num_calls -= self.training
        if not self.num_calls:
            raise RuntimeError("a bug of one's own")
        return self.linear(inputs.flatten(1))
try:
    hydrant.train(hydrant.compose([*words, "duration=100", "name=failed"]), model=Broken(30))
except RuntimeError as error:
    message = str(error)
message
"""
INTERRUPTED = """
import os, signal, threading
before = signal.getsignal(signal.SIGINT), sorted(thread.name for thread in threading.enumerate())
def stop():
    while not os.path.exists("outputs/stopped/checkpoints/last"):
        pass
    os.kill(os.getpid(), signal.SIGINT)
stopper = threading.Thread(target=stop)
stopper.start()
try:
    hydrant.train(hydrant.compose([*words, "save_every=3", "duration=1000000", "name=stopped"]))
except KeyboardInterrupt as error:
    message = str(error)
stopper.join()
assert before == (signal.getsignal(signal.SIGINT), sorted(thread.name for thread in threading.enumerate()))
message
"""


def outputs(folder: Path, *cells: str) -> list[list[Any]]:
    """Execute cells in a new kernel and return the outputs of each."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(folder)}}).execute()
    return [cell.outputs for cell in notebook.cells]


def text_of(cell: list[Any]) -> str:
    return "".join(output.text for output in cell if output.output_type == "stream")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_a_notebook_shows_the_bar_the_pictures_and_the_results(tmp_path: Path) -> None:
    trained, table, own, again = outputs(tmp_path, TRAIN, "run.metrics", OWN, TRAIN + "run.status")
    assert "100% ━━━" in text_of(trained)
    assert "finished: 6 updates" in text_of(trained)
    assert sum("image/png" in output.get("data", {}) for output in trained) == 4
    assert "val/accuracy" in table[-1].data["text/html"]
    assert "Sequential" in own[-1].data["text/plain"]
    assert again[-1].data["text/plain"] == "'finished'"
    with pytest.raises(CellExecutionError, match="did you mean 'sgd'"):
        outputs(tmp_path, "import hydrant", WRONG)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
def test_a_kernel_trains_on_after_an_error_and_after_an_interrupt(tmp_path: Path) -> None:
    _, _, failed, after_failure, stopped, after_stop = outputs(
        tmp_path, TRAIN, OWN, FAILS, TRAIN + "run.status", INTERRUPTED, TRAIN + "run.status"
    )
    assert "a bug of one's own" in failed[-1].data["text/plain"]
    assert "hydrant.train(config, folder='outputs/stopped') continues it" in stopped[-1].data["text/plain"]
    for cell in (after_failure, after_stop):
        assert cell[-1].data["text/plain"] == "'finished'"
