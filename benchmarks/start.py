"""How long it takes until something happens.

Whole commands, each in a fresh process with its code compiled to bytecode, in turn. To the first update is `python
train.py` on the digits with a row after every update: from the start of the process to the time in the row of the
first one, after composing and checking the config, building the run and a first evaluation. Beyond torch is what is
left without `import torch` of the same block, and torch's first optimizer is what the plainest script pays besides.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import ROOT

TRAIN = str(ROOT / "train.py")
TORCH = "import torch"
CODE = {
    "torch's own import": TORCH,
    "import of the training loop": f"{TORCH}, hydrant.loop",
    "import of a whole run, with configs and checkpoints": f"{TORCH}, hydrant.run",
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
    "first update, `tracker=local`": "<= 1.5",
    "first update, offline W&B": "<= 1.5",
}
REMAINDERS = {
    "import of the training loop": "Some sixty modules of Hydrant, 1 ms each on two slow shared cores, where importing "
    "torch takes more than 2 s.",
    "import of a whole run, with configs and checkpoints": "Hydra and OmegaConf, and torch.distributed.checkpoint, "
    "which imports DTensor and SymPy. Torch's first optimizer imports these anyway, so a run does not end later by it.",
    "first update, `tracker=local`": "Torch's first optimizer imports torch._dynamo, in every script: see its row. "
    "The rest is Hydra, the modules of Hydrant, and the checks before a run.",
    "first update, offline W&B": "As above, and the import of wandb and the start of its service.",
}


def measure(*, quick: bool) -> list[Figure]:
    """Of each command, and what it takes beyond torch."""
    compileall.compile_dir(ROOT / "src", quiet=1)
    with tempfile.TemporaryDirectory() as name:
        trials: dict[str, Callable[[], float]] = {
            title: partial(command_seconds, "-c", code) for title, code in CODE.items()
        }
        trials |= {title: partial(command_seconds, TRAIN, *words) for title, words in COMMANDS.items()}
        trials |= {title: partial(first_update, Path(name), words) for title, words in RUNS.items()}
        taken = in_turn(trials, 1 if quick else 7)
    torch, figures = taken["torch's own import"], list[Figure]()
    for title, own in taken.items():
        is_beyond = title in BEYOND
        value = paired(own, torch, lambda whole, part: whole - part) if is_beyond else interval(own)
        note = "beyond torch" if is_beyond else ""
        figures.append(Figure(title, value, "s", GOALS.get(title), note, REMAINDERS.get(title, "")))
    return figures


def in_turn(trials: Mapping[str, Callable[[], float]], num_blocks: int) -> dict[str, list[float]]:
    """What each trial gives in each block, forwards and backwards in turn."""
    taken: dict[str, list[float]] = {title: [] for title in trials}
    for number in range(num_blocks):
        for title in list(trials) if number % 2 == 0 else reversed(list(trials)):
            taken[title].append(trials[title]())
    return taken


def command_seconds(*words: str) -> float:
    """How long a Python command takes that succeeds, or is refused for its config."""
    began = time.perf_counter()
    done = python(words, ROOT)
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 2):
        raise RuntimeError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return seconds


def first_update(folder: Path, words: tuple[str, ...]) -> float:
    """From the start of a run to its first update."""
    run, began = Path(tempfile.mkdtemp(dir=folder)), time.time()
    done = python((TRAIN, "name=run", "log_every=1", "duration=1", *words), run)
    file = run / "outputs" / "run" / "metrics.jsonl"
    if not file.exists():
        raise RuntimeError(f"the run failed:\n{done.stderr[-2000:]}")
    rows = map(json.loads, file.read_text().splitlines())
    return next(row["time"] for row in rows if row["num_updates"] == 1) - began


def python(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
