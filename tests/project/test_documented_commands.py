"""Every command and example on a documentation page runs, in the order of the page, in one folder."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from documentation import blocks, commands, forget_modules, path_of
from repository import ROOT

from hydrant import cli

ALL_PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))),
]
PAGES = [
    page for page in ALL_PAGES if re.search(r"^```(bash|python)$", (ROOT / page).read_text(), re.MULTILINE)
]

QUICK = ("README.md", "docs/tutorials/your-own-parts.md", "docs/guides/configuration.md")
"""The pages that the default tests run. The others take two minutes together, or a minute and more each."""

# Run elsewhere: by .ci/run, tests/project/test_startup.py and tests/project/test_dockerfile.py. Commands that compile
# for a minute or more, or need a cluster, are run by slow tests.
ELSEWHERE = {
    "uv run train.py --multirun hydra/launcher=ray hydra.launcher.init.address=auto seed=0,1,2,3",
    "uv run train.py --multirun hydra/launcher=slurm hydra.launcher.partition=gpu hydra.launcher.gpus_per_node=1"
    " seed=0,1",
    "srun --ntasks=2 python train.py optimizer=sgd",
    "torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 --master-addr=node0 --master-port=29500 train.py"
    " optimizer=sgd",
    # A local server replaces W&B in tests/commands/compare/test_wandb_source.py and tests/commands/test_agent.py.
    "uv run hydrant compare wandb:me/lr_study",
    "uv run hydrant compare 'wandb:me/lr_study?group=digits-mlp/adamw/cosine,digits-mlp/sgd/cosine&state=finished'",
    "uv run hydrant compare multirun/optimizers 'wandb:me/lr_study?sweep=x1y2z3&optimizer.lr=1e-3' --by optimizer",
    "uv run hydrant compare wandb:me/lr_study/0a1b2c3d4e5f outputs/lr_study",
    "uv run hydrant compare wandb:me/lr_study --by optimizer,scheduler --wandb",
    "wandb sweep --project lr_study conf/wandb_sweep/grid.yaml",
    "uv run hydrant agent me/lr_study/x1y2z3",
    "uv run hydrant agent me/lr_study/x1y2z3 --count 10 parallel.num_processes=2 duration=20ep",
    "uv run hydrant sync multirun/lr_study --jobs 8",
    "uv run python run.py",  # tests/commands/test_eject.py
    "pip install uv",
    "uv run --group dev pytest",
    "uv run --group dev pytest -m slow -p randomly",
    "uv run --group dev scripts/check",
    "uv run --group dev scripts/pin",
    "uv run --only-group docs scripts/docs",
    "uv run scripts/kill_runs --kills 100 --output kills.json",
    "uv run scripts/kill_sweep --launcher basic joblib slurm --output kills.json",
    "uv run hydrant status multirun/lr_study --watch",
    "uv run tests/support/gpu/run python train.py optimizer=adamw duration=100",  # tests/gpu/test_command_line.py
    "uv run tests/support/gpu/run --devices 2 --memory-gib 1 --trace calls.txt python train.py parallel=ddp",
    "uv run --group dev tests/support/gpu/run pytest -n 0 tests/training/test_loop.py",
    "scripts/bench",
    "scripts/bench scale",
    ".ci/run",
    'eval "$(uv run hydrant -sc install=bash)"',
    "uv run train.py --multirun experiment=compiled_optimizer compile.hyperparameters=tensors,numbers",
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
        words[0] not in ("train", "race")
        or {"--help", "--cfg"} & set(words)
        or any(w.startswith("debug=") for w in words)
    ):
        return words
    return [
        *words,
        *name,
        *(f"{key}={value}" for key, value in SHORT.items() if key != "tracker" or key not in chosen),
    ]


# torch's elastic agent does not close the files with the output of the ranks.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*hydrant-ranks:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page in QUICK else pytest.mark.slow) for page in PAGES]
)
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "my_study").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    forget_modules("my_study")
    write_parts(page, folder, monkeypatch)
    documented = commands(page)
    assert documented
    for position, command in enumerate(documented):
        if (script := command.removeprefix("python ")) in files_of(page):
            exec(compile((folder / script).read_text(), script, "exec"), {})
        elif command not in ELSEWHERE:
            assert cli.main(arguments(command, position)) == 0, command
    exec(compile("\n".join(code for code in blocks(page, "python") if not path_of(code)), page, "exec"), {})


def files_of(page: str) -> set[str]:
    """Return the paths of the files that a page shows."""
    return {path_of(block) for language in ("python", "yaml") for block in blocks(page, language)} - {""}


def write_parts(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a page's code and YAML to where Hydrant finds them, outside of the repository."""
    for block in [*blocks(page, "python"), *blocks(page, "yaml")]:
        path = path_of(block)
        if not path:
            continue
        package = path.removeprefix("src/").rpartition("/")[0].replace("/", ".")
        if (ROOT / path).exists():  # an addition to a module
            module = importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
            added: dict[str, Any] = {}
            exec(compile(block, path, "exec"), dict(vars(module)), added)
            for name, value in added.items():
                assert not hasattr(module, name), f"{path} has {name} already"
                monkeypatch.setattr(module, name, value, raising=False)
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(block)
        if path.endswith(".py") and package.startswith("hydrant"):  # otherwise a module of the user
            module = importlib.import_module(package)
            monkeypatch.setattr(module, "__path__", [*module.__path__, str((folder / path).parent)])


def test_every_exception_is_on_a_page() -> None:
    documented = {command for page in PAGES for command in commands(page)}
    assert documented >= ELSEWHERE
    assert set(QUICK) <= set(PAGES)
