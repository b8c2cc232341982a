"""`hydrant init` writes a project that trains, tests and compares at once, and overwrites nothing."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import forget_modules
from full_disk import file_size_limit
from repository import ROOT

import hydrant
from hydrant import cli, installation
from hydrant.commands.registry import commands
from hydrant.errors import ConfigError
from hydrant.extensions.init.command import package_name, write_project
from hydrant.safety import trust

SHORT = ("duration=2", "eval_every=2")


@pytest.fixture(autouse=True)
def _own_process(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir.parent / f"{workdir.name}-config"))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    forget_modules("my_study")
    yield
    forget_modules("my_study")


@pytest.fixture
def project(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new project, which is the working folder."""
    assert cli.main(["init", "my-study"]) == 0
    monkeypatch.chdir(workdir / "my-study")
    return workdir / "my-study"


def test_a_new_project_trains_evaluates_and_compares(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["train", "experiment=first", "name=first", *SHORT]) == 0
    assert (project / "outputs" / "first" / "pictures" / "decision_map").is_dir()
    assert cli.main(["evaluate", "outputs/first", "--split", "test", "--json"]) == 0
    assert "test/worst_class" in json.loads(capsys.readouterr().out.splitlines()[-1])
    assert cli.main(["compare", "outputs/first"]) == 0
    assert [*hydrant.load_run("outputs/first").config["allow_targets"]] == ["my_study"]


MINE = """
from torch import Tensor, nn, ones
from torch.utils.data import Dataset
class Points(Dataset):
    num_classes = 2
    def __init__(self, number=400, transform=print): self.number = number
    def __len__(self): return self.number
    def __getitem__(self, index): return index * ones(2), index % 2
class Other(Points): "A second one."
class MyNet(nn.Linear):
    def __init__(self, num_classes, width, *, scale: float = 0.5, **kwargs): super().__init__(2, num_classes)
def my_loss(logits, targets, power=1): return nn.functional.cross_entropy(logits, targets) ** power
def helper(a, b): ...
"""


@pytest.mark.parametrize("mine", [MINE.replace("\n", "\r\n"), pytest.param(None, marks=pytest.mark.slow)])
def test_a_project_from_a_file_has_options_of_its_parts_and_an_empty_one_none(
    mine: str | None, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.py").write_text(mine or "", newline="")
    assert cli.main(["init", "my_study", *(["--from", "mine.py"] if mine else ["--empty"])]) == 0
    said = capsys.readouterr().out.splitlines()[2:-4]  # between what is written and what is next
    monkeypatch.chdir("my_study")
    options = {f"{p.parent.name}/{p.stem}": p.read_text() for p in Path("conf").glob("[!e]*/*.yaml")}
    words = ("experiment=first", "duration=2", "eval_every=2", "optimizer=adamw,sgd", "name=two")
    words = (*words, "model.width=8", "data.num_workers=0") if mine else words
    assert cli.main(["train", "--multirun", *words]) == 0
    assert len((workdir / "my_study/multirun/two/sweep.csv").read_text().splitlines()) == 3
    if mine:  # a validation set of its own takes the place of the part that is held out, and no part of the data tests
        kept = [word for word in words if "=adamw" not in word]
        assert cli.main(["train", *kept, "name=own", "data.val=${data.train}"]) == 0
        summaries = map(Path.read_text, (workdir / "my_study").rglob("summary.json"))
        sizes = sorted([*map(str, json.loads(text)["num_samples"].values())] for text in summaries)
        assert sizes == [["320", "80"]] * 2 + [["400", "400"]]
    assert (Path("my_study/mine.py").read_bytes().decode() if mine else None) == mine
    data = "defaults:\n- dataset\ntrain:\n  _target_: my_study.mine.{}\n  number: 400\nval: null\nval_ratio: 0.2\n{}"
    left_out = "transform: left out, because its default is no number, word or null"
    takes = ["data=points; to take another, add data=other", "model=my_net", "task=my_loss"]
    remarks = [f"experiment=first takes {option}" for option in takes]
    remarks.append("no option is made of helper; a loss needs a name that ends with loss")
    remarks += [f"conf/data/{name}.yaml: {left_out}" for name in ("points", "other")]
    remarks += [
        "conf/model/my_net.yaml: num_classes: needs ${data.num_classes}: an attribute of the Dataset, or give this key",
        "conf/model/my_net.yaml: width: needs a value before the first command",
    ]
    assert said == (remarks if mine else [])
    comments = (
        f"# {left_out}\n# val: samples of train, with its augmentation; a node like train validates on others\n"
        "# in_memory: true reads each item once: then it is never augmented anew, and a sweep can be stacked\n"
    )
    assert not mine or options == {
        "data/points": f"# my_study.mine.Points\n{data.format('Points', comments)}",
        "data/other": f"# A second one.\n{data.format('Other', comments)}",
        "model/my_net": "# my_study.mine.MyNet\n_target_: my_study.mine.MyNet\nnum_classes: ${data.num_classes}\n"
        "width: ???\nscale: 0.5\n",
        "task/my_loss": "# my_study.mine.my_loss\ndefaults:\n- supervised\nloss:\n  _target_: my_study.mine.my_loss\n"
        "  _partial_: true\n  power: 1\n"
        "# classification instead of supervised also measures the accuracy of classes\n",
    }


def test_the_project_depends_on_this_installation(project: Path) -> None:
    [requirement] = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    assert requirement == installation.requirement()
    assert requirement.startswith("hydrant-ml")
    assert ("on this machine only" in (project / "pyproject.toml").read_text()) == ("file://" in requirement)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({}, "hydrant-ml==0.1.0"),
        ({"url": "file:///dist/h.whl", "archive_info": {}}, "hydrant-ml @ file:///dist/h.whl"),
        ({"url": "file:///opt/h", "dir_info": {}}, "hydrant-ml==0.1.0"),  # of an image
        ({"url": "file:///home/h", "dir_info": {"editable": True}}, "hydrant-ml @ file:///home/h"),
        (
            {"url": "https://host/h.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "hydrant-ml @ git+https://host/h.git@abc",
        ),
    ],
)
def test_the_requirement_names_version_and_source(
    origin: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "_origin", lambda: origin)
    monkeypatch.setattr(installation, "version", lambda: "0.1.0")
    assert installation.requirement() == expected


def test_every_file_is_rendered_and_in_style(project: Path) -> None:
    for file in project.rglob("*"):
        assert not file.is_file() or not re.search(r"\{\{|my-study-", file.read_text()), file
        assert "template" not in file.name
    for words in (["check", "."], ["format", "--check", "."]):
        subprocess.run(["ruff", *words], check=True)


def test_nothing_is_overwritten(project: Path, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / ".gitignore").write_text("mine")
    assert cli.main(["init", "."]) == 2
    assert ".gitignore" in (message := capsys.readouterr().err)
    assert " more would be overwritten" in message
    assert message.count(", ") == 3, "two between three files, one in the remedy"
    assert (project / ".gitignore").read_text() == "mine"


def test_the_page_for_agents_names_commands_that_exist() -> None:
    template = ROOT / "src/hydrant/extensions/init/template/AGENTS.md.template"
    for page in (template, ROOT / "AGENTS.md"):
        text = page.read_text()
        named = re.findall(r"^hydrant (\w+)|`hydrant (\w+)", text, re.MULTILINE)
        assert {first or second for first, second in named} <= commands().keys()
        assert text.isascii()


def test_a_folder_with_other_files_is_completed(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workdir / "my_study"
    folder.mkdir()
    (folder / "points.csv").touch()
    (folder / "theirs.py").touch()
    monkeypatch.chdir(folder)
    assert cli.main(["init", "."]) == 0
    assert {path.name for path in folder.iterdir()} >= {"points.csv", "my_study", "conf"}
    assert trust.trusted_projects() == {str(folder): ["my_study"]}


def test_without_a_list_of_trusted_projects_the_project_is_written(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir / "file"))
    assert cli.main(["init", "my_study"]) == 0
    assert "Then run in my_study: hydrant trust" in capsys.readouterr().err
    assert (workdir / "my_study" / "README.md").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("3d", "cannot be the name of a package"), ("class", "cannot be"), ("été", "cannot be"), ("a+b", "cannot be"),
        ("torch", "installed already"), ("json", "installed already"), ("hydrant", "installed already"),
        ("conf", "another folder in a project"), ("tests", "another folder in a project"), ("/", "cannot be"),
    ],
)  # fmt: skip
def test_a_name_that_no_package_can_have_is_refused(name: str, message: str, workdir: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        package_name(workdir / name)
    assert list(workdir.iterdir()) == []


def test_names_are_those_of_the_folder(workdir: Path) -> None:
    given = ("a/my-study", "My Study", "a.b")
    assert [*map(package_name, map(Path, given))] == ["my_study", "My_Study", "a_b"]


@pytest.mark.slow
def test_the_project_passes_its_tests_and_its_commands_run(project: Path) -> None:
    for words in ([sys.executable, "-m", "pytest", "-q"], ["pyrefly", "check", "--preset", "default"]):
        subprocess.run(words, check=True)
    commands = re.findall(r"^hydrant .*", (project / "README.md").read_text(), re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        assert cli.main([*words, *(SHORT if words[0] == "train" else ())]) == 0, command


def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with file_size_limit(50), pytest.raises(ConfigError, match=f"{tmp_path}/.*File too large"):
        write_project(tmp_path, "mine")
