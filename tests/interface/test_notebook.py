"""In a notebook: a bar, pictures below the cell, a table, and two runs in one kernel."""

from __future__ import annotations

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
    assert sum("image/png" in output.get("data", {}) for output in trained) == 3
    assert "val/accuracy" in table[-1].data["text/html"]
    assert "Sequential" in own[-1].data["text/plain"]
    assert again[-1].data["text/plain"] == "'finished'"
    with pytest.raises(CellExecutionError, match="did you mean 'sgd'"):
        outputs(tmp_path, "import hydrant", WRONG)
