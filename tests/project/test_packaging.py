"""The wheel works anywhere, and a user's own conf folder and modules take part in it."""

import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from documentation import commands, write_files
from installed import environment, uv
from processes import printed
from repository import ROOT, conf_files

SHORT = ("tracker=local", "duration=2", "log_every=1", "eval_every=2", "limit_val_samples=32")
OWN_OPTIMIZER = """
import torch

class Backwards(torch.optim.SGD):
    def __init__(self, params, *, lr: float) -> None:
        super().__init__(params, lr=lr, maximize=True)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", str(folder), str(ROOT))
    return folder


@pytest.fixture(scope="module")
def hydrant(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of an environment with the wheel, and the packages that it requires."""
    home = tmp_path_factory.mktemp("installed")
    uv("venv", "--quiet", "--python", sys.executable, str(home))
    wheel = next(built.glob("*.whl"))
    python = home / "bin" / "python"
    uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel))
    packages = next((home / "lib").glob("python*/site-packages"))
    required = next(environment().parent.glob("lib/python*/site-packages"))
    (packages / "required.pth").write_text(str(required))  # the .pth files there are not read
    return home / "bin" / "hydrant"


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return printed(*command, cwd=cwd, env=environment)


def test_wheel_and_sdist_hold_every_config(built: Path) -> None:
    wheel = set(zipfile.ZipFile(next(built.glob("*.whl"))).namelist())
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    configs = {path.relative_to(ROOT).as_posix() for path in conf_files().values()}
    places = {name.removeprefix("src/") if name.startswith("src/") else f"hydrant/{name}" for name in configs}
    assert places <= wheel
    assert configs <= sdist
    page = "hydrant/extensions/compare/page"
    assert {f"{page}/page.html", f"{page}/page.css", f"{page}/main.js"} <= wheel
    template = (ROOT / "src" / "hydrant" / "extensions" / "init" / "template").rglob("*.template")
    assert {path.relative_to(ROOT / "src").as_posix() for path in template} <= wheel
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {f"hydrant/{name}" for name in pages} <= wheel
    assert pages <= sdist
    assert {"hydrant/commands/status.txt", "hydrant/extensions/editor/foreign_words.yaml"} <= wheel
    assert {"hydra_plugins/hydrant_searchpath/__init__.py", "hydrant/py.typed"} <= wheel
    assert "hydra_plugins/__init__.py" not in wheel  # Hydra's namespace: others put plugins there too


def test_a_wheel_records_its_commit_and_where_extras_come_from(hydrant: Path, tmp_path: Path) -> None:
    commit = printed("git", "-C", ROOT, "rev-parse", "HEAD").strip()
    assert f"(commit {commit[:12]}" in run(hydrant, "--version", cwd=tmp_path)
    code = "from hydrant.installation import install_command; print(install_command('onnx'))"
    command = run(hydrant.with_name("python"), "-c", code, cwd=tmp_path)
    assert re.search(r"install 'hydrant-ml\[onnx\] @ file:///.*\.whl'$", command.strip())


@pytest.mark.slow
def test_installed_command_runs_in_an_empty_folder(hydrant: Path, tmp_path: Path) -> None:
    assert "train" in run(hydrant, "--help", cwd=tmp_path)
    assert "cosine" in run(hydrant, "train", "--help", cwd=tmp_path)
    assert "torch.optim.AdamW" in run(hydrant, "train", "--cfg", "job", cwd=tmp_path)
    assert run(hydrant, "docs", "sweeps", cwd=tmp_path).startswith("# ")
    assert list(tmp_path.iterdir()) == []
    run(hydrant, "train", "name=tiny", "duration=2", "tracker=local", cwd=tmp_path)
    assert (tmp_path / "outputs" / "tiny" / "checkpoints" / "last" / "model.safetensors").is_file()
    code = "import hydrant; print(hydrant.__file__)"
    assert str(hydrant.parents[1]) in run(hydrant.with_name("python"), "-c", code, cwd=tmp_path)


@pytest.mark.slow
def test_own_conf_folder_adds_and_overrides_options(hydrant: Path, tmp_path: Path) -> None:
    own = tmp_path / "conf" / "optimizer"
    own.mkdir(parents=True)
    (own / "backwards.yaml").write_text("_target_: own_optimizer.Backwards\n_partial_: true\nlr: 0.1\n")
    (own / "adamw.yaml").write_text("_target_: torch.optim.AdamW\n_partial_: true\nlr: 0.125\n")
    (tmp_path / "own_optimizer.py").write_text(OWN_OPTIMIZER)

    assert "backwards" in run(hydrant, "list", "groups", cwd=tmp_path)
    assert "lr: 0.125" in run(hydrant, "train", "optimizer=adamw", "--cfg", "job", cwd=tmp_path)

    own_target = ("optimizer=backwards", "allow_targets=[own_optimizer]", "duration=2", "tracker=local")
    run(hydrant, "train", "name=own", *own_target, cwd=tmp_path)
    run(hydrant, "train", "--multirun", "name=own", "seed=0,1", *own_target, cwd=tmp_path)
    assert len((tmp_path / "multirun" / "own" / "sweep.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_the_tutorial_works_in_an_empty_folder(
    hydrant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (folder := tmp_path / "my_study").mkdir()
    page = "docs/tutorials/own-project.md"
    first, *others = commands(page)
    run(hydrant, *shlex.split(first)[1:], cwd=folder)
    text = (folder / "pyproject.toml").read_text()
    assert f'"hydrant-ml @ file://{hydrant.parents[1]}' not in text
    assert re.search(r'"hydrant-ml @ file:///.*\.whl"', text)
    write_files(page, folder)
    for command in others:
        run(hydrant, *shlex.split(command)[1:], cwd=folder)
    assert len((folder / "multirun" / "models" / "sweep.csv").read_text().splitlines()) == 13


@pytest.mark.slow
def test_the_five_examples_work_in_an_empty_folder(
    hydrant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = shutil.copytree(ROOT / "examples" / "five", tmp_path / "five")
    run(hydrant, "trust", cwd=folder)
    run(hydrant.with_name("python"), "make_data.py", cwd=folder)
    for experiment in folder.glob("conf/experiment/*.yaml"):
        words = (f"name={experiment.stem}", f"experiment={experiment.stem}")
        run(hydrant, "train", *words, *SHORT, cwd=folder)
    statuses = {json.loads(file.read_text())["status"] for file in folder.glob("outputs/*/summary.json")}
    assert len(list((folder / "outputs").iterdir())) == 5
    assert statuses == {"finished"}


def test_tab_completes_own_options(hydrant: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "conf" / "optimizer"
    own.mkdir(parents=True)
    (own / "backwards.yaml").write_text("_target_: own_optimizer.Backwards\n_partial_: true\nlr: 0.1\n")
    monkeypatch.setenv("COMP_LINE", "hydrant train optimizer=b")
    assert run(hydrant, "-sc", "query=bash", cwd=tmp_path).split() == ["optimizer=backwards"]
