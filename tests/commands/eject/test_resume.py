"""Ejected files that are killed continue to the numbers of a run without a break."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from eject_files import spoil, write_files
from ejected import TINY, project, rows_of, run_program, unchanged_process

from hydrant.commands.eject.command import program
from hydrant.config.check import check
from hydrant.config.compose import compose

__all__ = ["project", "unchanged_process"]
pytestmark = pytest.mark.usefixtures("unchanged_process")

SMALL = "global_batch_size=16 limit_train_samples=null"
IMAGES = f"data=image_folder data.root=images data.input_shape=[3,16,16] data.num_workers=2 {SMALL} limit_val_samples=7"
TOKENS = (
    "data=tokens data.root=texts data.sequence_length=16 task=language_modeling eval_batch_size=6 limit_val_samples=14 "
    f"model=gpt model.num_layers=1 model.width=16 model.num_heads=2 {SMALL}"
)
TENSORS = "data=tensors data.input_shape=[4] data.num_classes=5 limit_train_samples=null limit_val_samples=20"
FOLDER = Path("outputs/ejected")


def killed(text: str, update: int) -> None:
    """Run a program in a new process, which SIGKILL ends before this update."""
    line = next(line for line in text.splitlines() if line.startswith("    while num_updates < NUM_UPDATES"))
    kill = f"        if num_updates == {update}:\n            os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    changed = text.replace(f"{line}\n", f"{line}\n{kill}").replace(
        "import json\n", "import json\nimport os\n"
    )
    Path("killed.py").write_text(changed, encoding="utf-8")
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})"
    start = f"{threads}; import runpy; runpy.run_path('killed.py', run_name='__main__')"
    result = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr


def results() -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, float]]:
    """Return what a program leaves: the rows, the summary, and every number of its checkpoints by its place."""
    numbers = dict[str, float]()
    for name in ("last", "best"):
        numbers |= leaves(torch.load(FOLDER / f"{name}.pt", weights_only=True), name)
    return rows_of(FOLDER), json.loads((FOLDER / "summary.json").read_text()), numbers


def leaves(value: Any, place: str) -> dict[str, Any]:
    """Return the values in nested dicts and sequences by their place; tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return {place: value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()}
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, part in items for key, leaf in leaves(part, f"{place}.{name}").items()}
    return {place: value}


def check_killed_and_continued(words: str, update: int = 5) -> None:
    """Check that a program gives the same if it is killed before an update and started again."""
    text = program(check(compose([*TINY, *words.split()])))
    run_program(text)
    expected = results()
    for file in FOLDER.iterdir():
        file.unlink()
    killed(text, update)
    assert not (FOLDER / "summary.json").exists()
    assert torch.load(FOLDER / "last.pt", weights_only=True)["num_updates"] in range(1, update)
    with (FOLDER / "metrics.jsonl").open("a") as file:
        file.write(f'{{"num_updates": {update}, "la')  # as if it was killed in this line
    (FOLDER / "new.pt").write_bytes(b"half of a checkpoint")
    run_program(text)
    rows, summary, numbers = results()
    assert rows == expected[0]
    assert summary == expected[1]
    assert numbers.keys() == expected[2].keys()
    assert [place for place, value in numbers.items() if value != expected[2][place]] == []


@pytest.mark.parametrize(
    "words",
    [
        "averaging=ema",
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                "mixing=mixup averaging=ema",
                IMAGES,
                TOKENS,
                f"{TOKENS} data.sampling=documents",
                "scheduler=plateau scheduler.patience=0 optimizer.lr=1",
                "averaging=tail averaging.start=2",
                "averaging=ema model=convnet model.widths=[4,8] data.augment.max_shift=1",
                "optimizer=schedule_free_adamw",
                "optimizer=torch_muon",
                "optimizer=soap model.hidden=[256,256] duration=16",
                "optimizer=normuon",
                "optimizer=sam",
                "precision=fp16 precision.init_scale=1e6 micro_batch_size=8",
                "precision=fp16 precision.init_scale=1e6 model=convnet model.widths=[4,8] averaging=ema",
                f"{TOKENS} task.z_loss=0.01 micro_batch_size=4",
                f"{TENSORS} data.train=labels_train.pt data.val=labels_val.pt task.multi_label=true",
                f"{TENSORS} data.train=points_val.pt data.val=points_train.pt global_batch_size=8 skip_non_finite=true",
                "duration=40 patience=3 optimizer.lr=0.5",
            )
        ),
    ],
)
def test_a_killed_program_continues_to_the_same_numbers(words: str, workdir: Path) -> None:
    write_files(workdir)
    spoil(Path("points_val.pt"), 2)
    check_killed_and_continued(words)


def test_weights_of_nan_do_not_replace_a_checkpoint(workdir: Path) -> None:
    config = check(compose([*TINY, "optimizer=sgd", "optimizer.lr=1e30", "save_every=1", "log_every=7"]))
    with pytest.raises(FloatingPointError, match="in the weights after update 2"):
        run_program(program(config))
    state = torch.load(FOLDER / "last.pt", weights_only=True)
    assert state["num_updates"] == 1
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.slow
def test_a_killed_program_with_parts_of_a_project(project: Path) -> None:
    check_killed_and_continued("experiment=first hook=[] allow_targets=[mine] duration=7")
