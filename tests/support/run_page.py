"""Run the commands and the Python of a documentation page: `python run_page.py <page>`, in an empty folder.

It imports nothing that a user has not installed, so it runs in the environment that the page tells to make.
"""

import contextlib
import importlib
import io
import re
import shlex
import sys
from pathlib import Path

from documentation import blocks, commands, files_of, missing_lines, outputs, path_of, write_files

from hydrant import cli

# Run elsewhere: by .ci/run, tests/project/test_startup.py and tests/project/test_dockerfile.py. Commands that compile
# for a minute or more, or need a cluster, are run by slow tests.
ELSEWHERE = {
    "uv run train.py --multirun hydra/launcher=ray hydra.launcher.init.address=auto seed=0,1,2,3",
    "uv run train.py --multirun hydra/launcher=slurm hydra.launcher.partition=gpu hydra.launcher.gpus_per_node=1"
    " seed=0,1",
    # A local server replaces W&B in tests/extensions/compare/test_wandb_source.py and wandb/test_wandb_agent.py.
    "uv run hydrant compare wandb:me/lr_study",
    "uv run hydrant compare 'wandb:me/lr_study?group=digits-mlp/adamw/cosine,digits-mlp/sgd/cosine&state=finished'",
    "uv run hydrant compare multirun/optimizers 'wandb:me/lr_study?sweep=x1y2z3&optimizer.lr=1e-3' --by optimizer",
    "uv run hydrant compare wandb:me/lr_study/0a1b2c3d4e5f outputs/lr_study",
    "uv run hydrant compare wandb:me/lr_study --by optimizer,scheduler --wandb",
    "wandb sweep --project lr_study src/hydrant/extensions/wandb/conf/wandb_sweep/grid.yaml",
    "wandb agent --forward-signals me/lr_study/x1y2z3",
    "uv run hydrant sync multirun/lr_study --jobs 8",
    "python3 -m venv .venv && . .venv/bin/activate && pip install uv",
    "uv run --group dev pytest",
    "uv run --group dev pytest -m slow -p randomly",
    "uv run --group dev scripts/check",
    "uv run --group dev scripts/pin",
    "uv run --only-group docs scripts/docs",
    "uv run tests/support/gpu/run python train.py optimizer=adamw duration=100",  # tests/gpu/test_command_line.py
    "uv run tests/support/gpu/run --devices 2 --memory-gib 1 --trace calls.txt python train.py"
    " parallel.num_processes=2",
    "uv run --group dev tests/support/gpu/run pytest -n 0 tests/training/test_loop.py",
    "scripts/bench",
    "scripts/bench scale",
    ".ci/run",
    # 40 runs; the pages of the guides have such studies, which slow tests run.
    "uv run hydrant study optimizer=adamw,muon,lion --tune optimizer.lr --budget 40runs,10cpu-min --metric val/accuracy"
    " name=best_optimizer duration=10ep eval_every=10ep hydra/launcher=stacked --json",
    'eval "$(uv run hydrant -sc install=bash)"',
    "uv run train.py --multirun compile=default compile.optimizer=true compile.cache_dir=code"
    " optimizer.weight_decay=0.01,0.1",
}
COMMANDS = {"uv run train.py": ["train"], "python train.py": ["train"], "uv run hydrant": [], "hydrant": []}

# Appended to commands that train, because the values on a page take too long for a test.
SHORT = {"duration": "3", "save_every": "2", "eval_every": "2", "tracker": "local"}
# Appended to `hydrant bench`. If an option appears twice, the last value counts.
SHORT_BENCH = ["precision=fp32", "compile.backend=eager", "--repeats", "1", "--updates", "1", "--warmup", "0"]


def arguments(command: str, position: int) -> list[str]:
    """Return the arguments with which a test calls `hydrant` for a documented command."""
    start = next(start for start in COMMANDS if command.startswith(f"{start} "))
    words = [*COMMANDS[start], *shlex.split(command.removeprefix(start))]
    chosen = {word.partition("=")[0].partition(".")[0] for word in words}
    name = [] if "name" in chosen else [f"name=command_{position}"]  # runs of the same second share a folder
    if words[0] == "bench":
        return [*words, *name, *SHORT_BENCH]
    if (
        words[0] not in ("train", "study")
        or {"--help", "--cfg"} & set(words)
        or any(w.startswith("debug=") for w in words)
    ):
        return words
    return [
        *(re.sub(r"(?<=runs,)\d+min$", "60min", word) for word in words),  # a busy machine takes longer
        *name,
        *(f"{key}={value}" for key, value in SHORT.items() if key != "tracker" or key not in chosen),
    ]


class Tee(io.StringIO):
    """Keeps what is printed, and prints it."""

    def __init__(self) -> None:
        super().__init__()
        self._stdout = sys.stdout

    def write(self, text: str) -> int:
        self._stdout.write(text)
        return super().write(text)


def main(page: str) -> None:
    """Run everything on a page, in its order."""
    folder = Path.cwd()
    write_parts(page, folder)
    for position, command in enumerate(commands(page)):
        if (script := command.removeprefix("python ")) in files_of(page):
            exec(compile((folder / script).read_text(), script, "exec"), {})
        elif command not in ELSEWHERE:
            with contextlib.redirect_stdout(Tee()) as printed:
                status = cli.main(arguments(command, position))
            if status:
                sys.exit(f"exit status {status}: {command}")
            if missing := missing_lines(outputs(page).get(command, ""), printed.getvalue()):
                sys.exit(f"not printed by {command}: {missing}")
    exec(compile("\n".join(code for code in blocks(page, "python") if not path_of(code)), page, "exec"), {})


def write_parts(page: str, folder: Path) -> None:
    """Write a page's code and YAML to where Hydrant finds them, outside of the repository."""
    write_files(page, folder)
    for path in files_of(page):
        package = path.removeprefix("src/").rpartition("/")[0].replace("/", ".")
        if path.endswith(".py") and package.startswith("hydrant"):  # otherwise a module of the user
            module = importlib.import_module(package)
            module.__path__ = [*module.__path__, str((folder / path).parent)]


if __name__ == "__main__":
    main(sys.argv[1])
