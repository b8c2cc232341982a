"""docs/reference/hydra.md says what becomes of each setting and flag of Hydra; each line of its table is tested."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from marks import of_extension, slow_but
from repository import ROOT

from hydrant import cli
from hydrant.config.compose import compose
from hydrant.errors import ConfigError
from hydrant.runs.folder import RunFolder
from hydrant.runs.job import job_of
from hydrant.sweeps.executors.base import Sequential
from hydrant.sweeps.grid import GridSweeper

TINY = ("tracker=local", "data=synthetic", "data.input_shape=[4]", "data.num_classes=2", "data.num_samples=8",
        "data.num_val_samples=4", "model.hidden=[4]", "global_batch_size=4", "duration=1")  # fmt: skip

Line = Callable[[pytest.FixtureRequest], None]
LINES = dict[str, Line]()


def line(begin: str) -> Callable[[Line], Line]:
    """Test the line of the table whose first cell begins like this."""

    def add(function: Line) -> Line:
        LINES[begin] = function
        return function

    return add


def rows() -> list[str]:
    text = (ROOT / "docs" / "reference" / "hydra.md").read_text()
    return [
        row for row in re.findall(r"^\| (.*?) \| ", text, re.MULTILINE) if row not in ("you write", "---")
    ]


def test_each_line_has_a_test() -> None:
    found = [next((begin for begin in LINES if row.startswith(begin)), row) for row in rows()]
    assert found == list(LINES)


def of_extensions(param: Any) -> bool:
    return param.values[0].startswith(
        ("`hydra/launcher=local`", "`hydra/sweeper=grid`", "`hydra/sweeper=ax`", "`-sc install")
    )


LONG = ("`hydra.run.dir", "`hydra.mode", "`hydra/hydra_logging", "`hydra.searchpath", "`@hydra.main")
CASES = slow_but([row for row in rows() if not row.startswith(LONG)], rows())
CASES = [*filterfalse(of_extensions, CASES), *of_extension(*filter(of_extensions, CASES))]


@pytest.mark.usefixtures("workdir", "capfd")
@pytest.mark.parametrize("begin", CASES, ids=lambda row: re.sub(r"[^\w.=/-]+", " ", row)[:40])
def test_a_line_of_the_table(begin: str, request: pytest.FixtureRequest) -> None:
    next(test for known, test in LINES.items() if begin.startswith(known))(request)


def printed(request: pytest.FixtureRequest, *words: str, status: int = 0) -> str:
    """Run `train` and return what it prints."""
    assert cli.main(["train", *words]) == status
    output = request.getfixturevalue("capfd").readouterr()
    return output.err if status else output.out


def in_sweep(
    request: pytest.FixtureRequest,
    look: Callable[[GridSweeper], Any],
    *words: str,
    command: str = "--multirun",
) -> Any:
    """Return what `look` finds at the sweeper of a command, in place of its jobs."""
    seen = list[Any]()
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.setattr(GridSweeper, "run", lambda self: seen.append(look(self)))
    assert cli.main(["train", *([command] if command else []), *TINY, *words]) == 0
    return seen[0]


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@line("`hydra/launcher=local`")
def launchers(request: pytest.FixtureRequest) -> None:
    def kind(*words: str) -> type:
        return in_sweep(request, lambda s: type(s.executor), *words)

    assert kind() is kind("hydra/launcher=basic") is Sequential
    assert kind("hydra/launcher=local").__name__ == "Local"


@line("`hydra/launcher=submitit_slurm`")
def other_launchers(request: pytest.FixtureRequest) -> None:
    target = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher"
    message = printed(request, "--multirun", f"hydra.launcher._target_={target}", status=2)
    assert message.startswith("error: hydra/launcher: ")
    assert "composes each config again" in message


@line("`hydra/sweeper=grid`")
def sweepers(request: pytest.FixtureRequest) -> None:
    assert in_sweep(request, type) is GridSweeper
    message = printed(request, "--multirun", "hydra/sweeper=study", "optimizer=adamw", status=2)
    assert message.startswith("error: hydra.sweeper.contenders: needs two contenders or more")


@line("`hydra/sweeper=ax`")
def other_sweepers(request: pytest.FixtureRequest) -> None:
    target = "hydra_plugins.hydra_ax_sweeper.ax_sweeper.AxSweeper"
    message = printed(request, "--multirun", f"hydra.sweeper._target_={target}", status=2)
    assert "hydra/sweeper: " in message
    assert "use one of grid, optuna, study" in message


@line("`hydra.run.dir=<folder>`")
def run_folders(request: pytest.FixtureRequest) -> None:
    printed(request, *TINY, "hydra.run.dir=some/where")
    assert RunFolder(Path("some/where")).summary["status"] == "finished"


@line("`hydra.sweep.dir=<folder>`")
def sweep_folders(request: pytest.FixtureRequest) -> None:
    words = ("hydra.sweep.dir=study", "hydra.sweep.subdir=job-${seed}")
    folders = in_sweep(request, lambda s: (s.folder, s._compose(["seed=3"], 0).folder), *words)
    assert folders == (Path("study"), Path("study/job-3").resolve())


@line("`hydra.mode=MULTIRUN`")
def modes(request: pytest.FixtureRequest) -> None:
    write("conf/experiment/mine.yaml", "# @package _global_\nhydra: {mode: MULTIRUN}\n")
    for words in (["hydra.mode=MULTIRUN", "seed=0,1"], ["experiment=mine", "seed=0,1"], ["experiment=mine"]):
        assert in_sweep(request, type, *words, command="") is GridSweeper
    assert "several values; add --multirun" in printed(request, "seed=0,1", status=2)
    # What is wrong in the sweep is not hidden by a refusal of the run.
    for words in ([], ["experiment=mine"]):
        assert "bogus: no such key" in printed(request, *words, "seed=0,1", "bogus=3", status=2)


@line("`hydra.job.env_set.<NAME>=<value>`")
def variables(request: pytest.FixtureRequest) -> None:
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.setenv("COPIED", "2")
    seen = list[Any]()
    patch.setattr("hydrant.commands.train._execute", lambda *_: seen.append(dict(os.environ)))
    patch.setattr(
        "hydrant.commands.train.job_of",
        lambda config, placed: (seen.append(dict(os.environ)), job_of(config, placed))[1],
    )
    patch.setattr("hydrant.commands.train.report", lambda _: 0)
    printed(request, *TINY, "+hydra.job.env_set.SET=1", "hydra.job.env_copy=[COPIED]")
    # Also before torch is imported.
    assert [(each["SET"], each["COPIED"]) for each in seen] == [("1", "2")] * 2
    assert "SET" not in os.environ
    environment = in_sweep(
        request, lambda s: s._compose(["seed=0"], 0).environment, "+hydra.job.env_set.SET=1"
    )
    assert environment == {"SET": "1"}


@line("`${hydra:job.num}`")
def values(request: pytest.FixtureRequest) -> None:
    def look(sweeper: GridSweeper) -> tuple[int, str]:
        job = sweeper._compose(["seed=${hydra:job.num}", "notes=a"], 7)
        return job.config["seed"], job.folder.name

    assert in_sweep(request, look, "hydra.sweep.subdir=x-${hydra.job.num}") == (7, "x-7")
    seed, name = in_sweep(request, look, "hydra.sweep.subdir=${hydra.job.override_dirname}")
    assert (seed, name) in ((7, "notes=a,seed=7"), (7, "notes=a,seed=${hydra:job.num}"))


@line("`hydra.job.chdir=true`")
def working_folder(request: pytest.FixtureRequest) -> None:
    assert printed(request, "hydra.job.chdir=true", status=2).startswith("error: hydra.job.chdir: ")


@line("`hydra.output_subdir=<name>`")
def output_subdir(request: pytest.FixtureRequest) -> None:
    assert printed(request, "hydra.output_subdir=x", status=2).startswith("error: hydra.output_subdir: ")


@line("`hydra.callbacks`")
def callbacks(request: pytest.FixtureRequest) -> None:
    message = printed(request, "+hydra.callbacks.x._target_=my.Callback", status=2)
    assert message.endswith("Hydra's callbacks are not called; choose or write a hook: hook=<option>\n")


@line("`hydra/job_logging=default`")
def logs(request: pytest.FixtureRequest) -> None:
    printed(request, *TINY, "hydra/job_logging=default", "hydra.verbose=true", "name=logged")
    assert Path("outputs/logged/train.log").exists()


@line("`hydra/hydra_logging`")
def logs_of_hydra(request: pytest.FixtureRequest) -> None:
    printed(request, *TINY, "hydra/hydra_logging=default")


@line("`hydra.searchpath=")
def search_path(request: pytest.FixtureRequest) -> None:
    write("more/optimizer/mine.yaml", "defaults: [adamw]\nlr: 0.5\n")
    write("theirs/conf/__init__.py", "")
    write("theirs/__init__.py", "")
    write("theirs/conf/optimizer/__init__.py", "")
    write("theirs/conf/optimizer/packed.yaml", "defaults: [adamw]\nlr: 0.25\n")
    request.getfixturevalue("monkeypatch").syspath_prepend(Path.cwd())
    for path in (f"file://{Path.cwd()}/more", "more", "file://more"):
        assert compose([f"hydra.searchpath=[{path},pkg://theirs.conf]", "optimizer=mine"]).optimizer.lr == 0.5
    assert compose(["hydra.searchpath=[more,pkg://theirs.conf]", "optimizer=packed"]).optimizer.lr == 0.25
    write("more/experiment/odd.yaml", "# @package _global_\nseed: 010\n")
    with pytest.raises(ConfigError, match=r"more/experiment/odd.yaml: line 2: YAML reads 010 as 8"):
        compose(["hydra.searchpath=[more]", "experiment=odd"])
    write("conf/train.yaml", (ROOT / "conf" / "train.yaml").read_text() + "  searchpath: [more]\n")
    with pytest.raises(ConfigError, match="YAML reads 010 as 8"):
        compose(["experiment=odd"])


@line("structured configs")
def structured(request: pytest.FixtureRequest) -> None:
    ConfigStore.instance().store("stored", {"seed": 11}, group="experiment", package="_global_")
    assert compose(["experiment=stored"]).seed == 11


@line("`HydraConfig.get()`")
def hydra_config(request: pytest.FixtureRequest) -> None:
    source = (
        "import json, pathlib\nfrom hydra.core.hydra_config import HydraConfig\nclass Note:\n"
        "    def on_start(self, trainer):\n        hydra = HydraConfig.get()\n"
        "        seen = [hydra.runtime.output_dir, hydra.runtime.choices.optimizer, str(hydra.mode)]\n"
        "        pathlib.Path('seen').write_text(json.dumps(seen))\n"
    )
    request.getfixturevalue("user_module")("seeing", source)
    words = ("+hooks.note._target_=seeing.Note", "allow_targets=[seeing]", "optimizer=sgd", "name=a")
    printed(request, *TINY, *words)
    folder = Path("outputs/a").resolve()
    assert Path("seen").read_text() == f'["{folder}", "sgd", "RunMode.RUN"]'


@line("`.hydra/`")
def records(request: pytest.FixtureRequest) -> None:
    printed(request, *TINY, "name=recorded")
    folder = Path("outputs/recorded/.hydra")
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "hydra.yaml", "overrides.yaml"]


@line("`@hydra.main`")
def own_apps(request: pytest.FixtureRequest) -> None:
    write("conf/mine.yaml", "defaults: [optimizer: sgd, _self_]\n")
    program = (
        "import hydra\n@hydra.main(config_path='conf', config_name='mine', version_base='1.3')\n"
        "def main(config): print(config.optimizer._target_)\nmain()\n"
    )
    write("app.py", program)
    done = subprocess.run([sys.executable, "app.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "torch.optim.SGD\n"


@line("`--cfg job`")
def configs(request: pytest.FixtureRequest) -> None:
    assert "\nhydra:" not in (job := printed(request, "--cfg", "job", "name=a"))
    assert "\nseed: 0\n" in job
    assert printed(request, "--cfg", "hydra").startswith("hydra:\n")
    assert {"hydra:", "seed: 0"} <= set(printed(request, "--cfg", "all").splitlines())
    best = printed(request, "--cfg", "job", "--package", "best")
    assert best == "# @package best\nmetric: auto\nmode: auto\n"
    assert printed(request, "--cfg", "job", "-p", "notes", "notes=${seed}", "--resolve") == "0\n"
    run = printed(request, "--cfg", "hydra", "-p", "hydra.run", "--resolve", "name=a")
    assert run == "# @package hydra.run\ndir: outputs/a\n"
    assert "--resolve: " in printed(request, "--resolve", status=2)
    assert "--package: " in printed(request, "--cfg", "job", "-p", "nothing", status=2)


@line("`--info`")
def information(request: pytest.FixtureRequest) -> None:
    text = printed(request, "--info", "optimizer=sgd")
    assert re.search(r"^optimizer/sgd +optimizer +train$", text, re.MULTILINE)
    assert f"hydrant://{ROOT / 'conf'}" in text


@line("`--config-dir <folder>`")
def config_dir(request: pytest.FixtureRequest) -> None:
    write("more/optimizer/mine.yaml", "defaults: [adamw]\nlr: 0.5\n")
    words = ("--config-dir", "more", "--cfg", "job", "-p", "optimizer.lr", "optimizer=mine")
    assert printed(request, *words) == "0.5\n"
    assert "--config-dir: nowhere is not a folder" in printed(request, "--config-dir", "nowhere", status=2)


@line("`--config-name <name>`")
def primary(request: pytest.FixtureRequest) -> None:
    write("own/mine.yaml", "defaults: [train, _self_]\nseed: 5\n")
    words: Sequence[str] = ("--config-path", "own", "--config-name", "mine", "--cfg", "job", "-p", "seed")
    assert printed(request, *words) == "5\n"
    assert "--config-name: no config 'nope'" in printed(request, "--config-name", "nope", status=2)


@line("`-sc install=bash`")
def completion(request: pytest.FixtureRequest) -> None:
    assert "compdef _hydrant hydrant" in printed(request, "-sc", "install=zsh")
    assert "-sc needs one of install=bash" in printed(request, "-sc", "install=tcsh", status=2)
    request.getfixturevalue("monkeypatch").setenv("COMP_LINE", "hydrant train optimizer.be")
    assert "optimizer.betas" in printed(request, "-sc", "query=bash")


@line("`--hydra-help`")
def other_flags(request: pytest.FixtureRequest) -> None:
    for flag in ("--hydra-help", "--experimental-rerun"):
        assert f"hydrant train has no flag {flag}" in printed(request, flag, status=2)


def test_no_private_part_of_hydra_or_omegaconf_is_used() -> None:
    """They change with any version."""
    private = re.compile(
        r"hydra\._internal|omegaconf\._[a-z]|import _\w+.*hydra|_set_parent|ConfigLoaderImpl"
    )
    sources = [path for path in (ROOT / "src").rglob("*.py") if private.search(path.read_text())]
    assert sources == []
