"""Help and completion start without torch, and a run imports only what it uses."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from marks import slow, slow_but
from processes import printed
from repository import ROOT, conf_files

from hydrant.commands.registry import commands, overview

TRAIN = str(ROOT / "train.py")
HYDRANT = str(Path(sys.executable).with_name("hydrant"))
SLOW = {"torch", "torchvision", "timm", "torchmetrics", "wandb", "sklearn", "scipy", "matplotlib",
        "tensorboard"}  # fmt: skip
"""Packages whose import takes 0.1 to 10 seconds."""

CALLS = {
    "hydrant --help": [HYDRANT, "--help"],
    "hydrant train --help": [HYDRANT, "train", "--help"],
    "hydrant compare --help": [HYDRANT, "compare", "--help"],
    "hydrant preview --help": [HYDRANT, "preview", "--help"],
    "python -m hydrant --help": ["-m", "hydrant", "--help"],
    "python train.py --help": [TRAIN, "--help"],
    "python train.py --cfg job": [TRAIN, "--cfg", "job"],
}


def run(arguments: list[str], line: str | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if line is None else {"COMP_LINE": line, "COMP_POINT": str(len(line))})
    command = [sys.executable, "-X", "importtime", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=True)


def imported(importtime: str) -> set[str]:
    """Return the packages in the output of `-X importtime`."""
    return {
        line.rpartition("|")[2].strip().partition(".")[0] for line in importtime.splitlines() if "|" in line
    }


def test_a_misspelt_key_is_refused_without_torch() -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run([TRAIN, "optimizer.lrr=1"])
    assert "did you mean 'lr'?" in refused.value.stderr
    assert imported(refused.value.stderr) & SLOW == set()


@pytest.mark.parametrize("command", slow_but(("hydrant --help", "python train.py --cfg job"), CALLS))
def test_help_imports_nothing_slow(command: str) -> None:
    process = run(CALLS[command])
    assert process.stdout.strip()
    assert "hydrant" in imported(process.stderr)
    assert imported(process.stderr) & SLOW == set()


def test_a_list_names_every_option_of_every_group() -> None:
    words = set(re.findall(r"[\w/]+", run([HYDRANT, "list", "groups"]).stdout))
    for name, path in conf_files("*/**/[!_]*.yaml").items():
        group = name.rpartition("/")[0]
        assert group == "wandb_sweep" or {group, path.stem} <= words  # W&B reads wandb_sweep


def test_help_and_overview_name_every_command() -> None:
    assert set(commands()) == {text.stem for text in (ROOT / "src" / "hydrant").rglob("*.txt")}
    assert all(f"  {command} " in overview() for command in commands())


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("hydrant tr", {"train", "trust"}),
        (
            "hydrant train scheduler=co",
            {"scheduler=constant", "scheduler=cosine", "scheduler=cosine_restarts"},
        ),
        ("hydrant preview optimizer.lr", {"optimizer.lr="}),
        ("hydrant export --f", {"--format"}),
        ("python train.py --multi", {"--multirun"}),
        ("python train.py optimizer=adamw tracker=w", {"tracker=wandb"}),
    ],
)
def test_tab_completes_and_imports_nothing_slow(line: str, completions: set[str]) -> None:
    process = run([TRAIN if line.startswith("python") else HYDRANT, "-sc", "query=bash"], line)
    assert set(process.stdout.split()) == completions
    assert "hydrant" in imported(process.stderr)
    assert imported(process.stderr) & {*SLOW, "hydra", "omegaconf", "antlr4"} == set()


def completed_by_bash(line: str, cwd: Path) -> list[str]:
    """Call the function that is installed for the line's first word, as an interactive shell does."""
    script = """
        eval "$(hydrant -sc install=bash)"
        COMP_LINE="$0" COMP_POINT=${#0}
        function=$(complete -p "${0%% *}" | sed 's/.* -F \\([a-z_]*\\) .*/\\1/')
        "$function"
        echo "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return printed("bash", "-c", script, line, env=environment, cwd=cwd).split()


@pytest.mark.parametrize(
    "program",
    ["hydrant train", "uv run train.py", *slow("python train.py", "python3 train.py", "uv run hydrant train")],
)  # fmt: skip
def test_bash_gets_the_completions(program: str) -> None:
    assert completed_by_bash(f"{program} seed=1 optimizer=adamw", ROOT) == ["optimizer=adamw"]


def completed_by(shell: str, line: str) -> set[str]:
    """Return what a real shell offers after a line and two Tabs."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}, as root: apt-get install -y --no-install-recommends {shell}")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if shell == "fish":
        script = f"hydrant -sc install=fish | source; complete --do-complete {line!r}"
        return set(printed("fish", "--no-config", "-c", script, env=environment).split())
    # `compadd` shows its matches to a terminal only; here it prints those that begin with the last word.
    script = f"""
        compdef() {{ : }}
        compadd() {{ print -l -- "${{(P@)@[-1]}}" }}
        eval "$(hydrant -sc install=zsh)"
        words=({line}) CURRENT=$#words
        _hydrant
    """
    return set(printed("zsh", "-f", "-c", script, env=environment).split())


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_completions(shell: str) -> None:
    formats = {f"precision=fp{bits}" for bits in (8, 16, 32, 64)}
    assert completed_by(shell, "hydrant train precision=f") == formats
    assert completed_by(shell, "hydrant compare --ht") == {"--html"}
    found = completed_by(shell, "hydrant train experiment=digits_convnet model.")  # which Hydra answers
    assert {"model.widths.", "model.dropout="} <= found


@pytest.mark.parametrize("line", ["python other.py opti", "uv run other.py opti", "uv sync opti"])
def test_bash_starts_no_other_program(line: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("open('started', 'w')")
    assert completed_by_bash(line, tmp_path) == []
    assert not (tmp_path / "started").exists()


def test_the_loop_imports_no_config_library_and_the_default_run_only_what_it_uses(tmp_path: Path) -> None:
    """The loop gets built objects, so it takes only PyTorch to import it."""
    code = f"import sys, runpy, hydrant.training.loop; print(*sys.modules); runpy.run_path('{TRAIN}', None, '__main__')"
    done = run(["-c", code, "duration=2", "tracker=local"], cwd=tmp_path)
    of_the_loop, importtime = set(done.stdout.partition("\n")[0].split()), done.stderr
    assert "torch" in of_the_loop
    assert "torch._dynamo" not in of_the_loop, "torch.compiler's decorators import it"
    assert {"hydra", "omegaconf", "yaml"} & of_the_loop == set()
    modules = imported(importtime)
    assert "hydrant.training.metrics" in importtime
    assert "hydrant.extensions.profiling" not in importtime
    assert "torch" in modules
    assert modules & (SLOW - {"torch", "matplotlib"}) == set()
    assert "rich" not in modules  # stdout is no terminal
