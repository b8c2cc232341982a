"""Start times of commands, imports and runs.

Each command runs in a fresh process with its code compiled to bytecode; all commands take turns. "First update" is
`python train.py` on the digits with a metrics row after every update: the time from the start of the process to the
first row, which includes composing and checking the config, building the run and a first evaluation. "Beyond torch"
subtracts the time of `import torch` in the same block. "torch's first optimizer" is what even the simplest script
pays in addition to the import.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT, child_environment, in_turn

TRAIN = str(ROOT / "train.py")
TORCH = "import torch"
CODE = {
    "torch's own import": TORCH,
    "import of the training loop": f"{TORCH}, hydrant.training.loop",
    "import of a whole run, with configs and checkpoints": f"{TORCH}, hydrant.runs.execute",
    "torch's first optimizer": f"{TORCH}; torch.optim.AdamW(torch.nn.Linear(1, 1).parameters())",
}
COMMANDS = {
    "`python train.py --help`": ("--help",),
    "config check, `python train.py --cfg job`": ("--cfg", "job"),
    "config check, a key that is refused": ("optimizer.lrr=1",),
}
RUNS = {
    "first update, `tracker=local`": ("tracker=local",),
    "first update, offline W&B": ("tracker.mode=offline",),
}
BEYOND = (*list(CODE)[1:], *RUNS)
GOALS = dict(zip(COMMANDS, ("<= 0.5", "<= 1", "<= 1"), strict=True)) | {
    "import of the training loop": "<= 0.05",
    "import of a whole run, with configs and checkpoints": "<= 0.05",
    **dict.fromkeys(RUNS, "<= 1.5"),
}
REMAINDERS = {
    "import of the training loop": "About sixty modules of Hydrant take 1 ms each on two slow shared cores, where "
    "importing torch takes more than 2 s.",
    "import of a whole run, with configs and checkpoints": "Hydra, OmegaConf and torch.distributed.checkpoint, which "
    "imports DTensor and SymPy. Torch's first optimizer imports these two anyway, so a whole run is not slower.",
    "first update, `tracker=local`": "Torch's first optimizer imports torch._dynamo in every script: see its row. "
    "The rest is Hydra, Hydrant's modules, and the checks before a run.",
    "first update, offline W&B": "As for `tracker=local`, plus the import of wandb, by a thread while the run is "
    "prepared, and its start.",
}


def measure(*, quick: bool) -> list[Figure]:
    """Measure each command, some of them minus the import of torch."""
    compileall.compile_dir(ROOT / "src", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        trials: dict[str, Callable[[], float]] = {
            title: partial(command_seconds, "-c", code) for title, code in CODE.items()
        }
        trials |= {title: partial(command_seconds, TRAIN, *words) for title, words in COMMANDS.items()}
        trials |= {title: partial(first_update, Path(name), words) for title, words in RUNS.items()}
        seconds = in_turn(trials, 1 if quick else 7)
    torch, figures = seconds["torch's own import"], list[Figure]()
    for title, values in seconds.items():
        is_beyond = title in BEYOND
        value = paired(values, torch, lambda whole, part: whole - part) if is_beyond else interval(values)
        note = "beyond torch" if is_beyond else ""
        figures.append(Figure(title, value, "s", GOALS.get(title), note, REMAINDERS.get(title, "")))
    return figures


def command_seconds(*words: str) -> float:
    """Return the seconds of a Python command that succeeds or refuses its config.

    Raises:
        RuntimeError: The command failed otherwise.
    """
    start = time.perf_counter()
    done = python(words, ROOT)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return seconds


def first_update(folder: Path, words: tuple[str, ...]) -> float:
    """Return the seconds from the start of a run to its first update."""
    run, start = Path(tempfile.mkdtemp(dir=folder)), time.time()
    done = python((TRAIN, "name=run", "log_every=1", "duration=1", *words), run)
    file = run / "outputs" / "run" / "metrics.jsonl"
    if not file.exists():
        raise RuntimeError(f"the run failed:\n{done.stderr[-2000:]}")
    rows = map(json.loads, file.read_text().splitlines())
    return next(row["time"] for row in rows if row["num_updates"] == 1) - start


def python(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=child_environment(), capture_output=True, text=True)
