"""Every wrong command line is refused in one line with exit status 2, and nothing starts."""

import itertools
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from repository import ROOT

from hydrant import cli
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.installation import install_command
from hydrant.sweeps.preflight import prepare_all
from hydrant.terminal.console import error_line, say_error
from hydrant.training.distributed.world import World

TINY = shlex.split(
    "tracker=local data=synthetic data.input_shape=[1,4,4] data.num_classes=3 data.num_samples=16 "
    "data.num_val_samples=4 global_batch_size=8 duration=2 log_every=1 eval_every=2 save_every=2"
)
Refused = Callable[..., str]


def table(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (section, command line, message) for every row of a wrong_inputs.txt."""
    section, lines = "", file.read_text(encoding="utf-8").splitlines()
    for line, following in itertools.pairwise([*lines, ""]):
        section = line.removeprefix("## ") if line.startswith("## ") else section
        if line.startswith("$ "):
            yield section, line.removeprefix("$ "), following


ROWS = list(table(Path(__file__).with_name("wrong_inputs.txt")))
EXTENSIONS = [row for file in sorted(ROOT.glob("tests/extensions/*/wrong_inputs.txt")) for row in table(file)]


def matches(expected: str, message: str) -> bool:
    """Whether a message equals the expected one, in which `...` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.fullmatch(pattern, message) is not None


def content(folder: Path) -> dict[str, bytes | None]:
    """Return every file below a folder with its bytes, and every folder with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def fail(*_: object) -> None:
    raise AssertionError("a refused command has started")


WITHOUT_REMEDY = {
    "refuses it: |timm rejects|Key '.*' not in|Cannot convert|Invalid value|has no values ": "it is of another library",
    "cannot be resolved: |is damaged|is missing|yaml: line ": "it says where in a file of the user",
    "cannot be imported|is not installed": "it says what in the code of the user",
    "no such key, |no option null|contains no value|contains the value": "nothing is there to choose or to remove",
    "expected one argument|invalid (float value|choice)": "argparse names the flag and what it takes",
    "nested more than|not a class or a function": "the value is of no use at all",
    "does not scale|means no shift": "the message has the possible values, as a fact",
}
"""Why a message tells a program no remedy."""


def say_with_remedy(message: str, exit_status: int, key: str = "", remedy: str = "") -> int:
    error = json.loads(error_line(message, exit_status, key, remedy))
    assert error["message"] not in ("", key)
    assert error["remedy"] or any(re.search(pattern, message) for pattern in WITHOUT_REMEDY), message
    return say_error(message, exit_status, key, remedy)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["hydrant"])
    return folder


@pytest.fixture
def refused(workdir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must be refused; return the message after `error: `. A program gets a remedy."""
    monkeypatch.setattr(World, "set_device", fail)
    for module in ("runs.job", "terminal.console"):  # in this order, to import the first one unpatched
        monkeypatch.setattr(f"hydrant.{module}.say_error", say_with_remedy)

    def run(*words: str) -> str:
        files = content(workdir)
        status = cli.main(words)
        printed = capfd.readouterr()
        assert "Traceback" not in printed.out + printed.err
        last = printed.err.splitlines()[-1]
        assert last.startswith("error: ")
        assert status == 2, last
        assert content(workdir) == files, "the command created, changed or removed a file"
        return last.removeprefix("error: ")

    return run


@pytest.mark.parametrize(
    ("section", "words", "expected"),
    [
        pytest.param(
            *row,
            marks=[pytest.mark.slow] * (place % 6 > 0) + [pytest.mark.extension] * (row in EXTENSIONS),
            id=row[1],
        )
        for place, row in enumerate([*ROWS, *EXTENSIONS])
    ],
)
def test_a_wrong_command_is_refused(section: str, words: str, expected: str, refused: Refused) -> None:
    if "without CUDA" in section and torch.cuda.is_available():
        pytest.skip("has CUDA")
    message = refused(*shlex.split(words))
    assert matches(expected, message), message


def test_the_table_is_read_completely() -> None:
    assert len(ROWS) >= 150
    assert all(expected and not expected.startswith(("$", "#")) for _, _, expected in [*ROWS, *EXTENSIONS])


def test_a_job_that_cannot_be_prepared_stops_the_sweep_before_it_starts(refused: Refused) -> None:
    message = refused("train", "-m", *TINY, "name=study", "optimizer.lr=1e-3,-1", "scheduler.warmup=0,1")
    assert message.startswith(
        "optimizer.lr: torch.optim.AdamW refuses it: Invalid learning rate: -1; 2 of 4 jobs cannot run, "
    )
    assert message.endswith("; give optimizer.lr another value")


def test_existing_folders_are_kept(workdir: Path, refused: Refused) -> None:
    (workdir / "outputs" / "mine").mkdir(parents=True)
    refused("train", "name=mine", "optimizer.lr=-1")
    refused("train", "optimizer.lr=-1")
    assert (workdir / "outputs" / "mine").is_dir()


def test_a_file_or_a_link_to_nothing_where_the_run_folder_should_be(workdir: Path, refused: Refused) -> None:
    (workdir / "outputs").write_text("mine")
    places = {"outputs": "is a file, and a folder is needed"}
    for name, target in (("gone", "/nowhere/x"), ("loop", "loop")):
        Path(name).symlink_to(target)
        places[name] = f"is a link to {target}, which does not exist"
    for name, reason in places.items():
        for words in (f"hydra.run.dir={name}", f"hydra.run.dir={name}/a/b"):
            remedy = "give a folder that can be written: hydra.run.dir=<folder>"
            assert refused("train", *TINY, words) == f"hydra.run.dir: {name} {reason}; {remedy}"
    for name in ("outputs", "gone"):
        message = refused("train", "--multirun", *TINY, f"hydra.sweep.dir={name}", "seed=0,1")
        assert message.startswith(f"name: {name} {places[name]}; give another name=")
    assert refused("train", *TINY, "name=run") == f"hydra.run.dir: outputs {places['outputs']}; {remedy}"


@pytest.mark.slow
def test_values_that_are_too_long_or_nested_too_deeply(refused: Refused) -> None:
    message = refused("train", f"seed={'9' * 5000}")
    assert matches("seed: '999...999...' cannot be parsed (Exceeds the limit...", message)
    for word in (
        f"seed={'[' * 3000}{']' * 3000}",
        f"seed={'[' * 50}1{']' * 50}",
        "++seed={a: " + "{a: " * 60 + "1" + "}" * 61,
    ):
        assert refused("train", word) == "seed: is nested more than 50 levels deep"
    assert refused("train", f"+{'a.' * 60}b=1").endswith(": is nested more than 50 levels deep")
    assert len(refused("train", "x" * 5000)) < 500


def test_a_folder_name_that_is_too_long(workdir: Path, refused: Refused) -> None:
    for name in (f"name={'a' * 256}", f"name='a{'é' * 127}a'"):
        assert "cannot be made (File name too long); give a folder" in refused("train", *TINY, name)
    for folder in ("x" * 256, f"outputs/new/{'x' * 256}"):
        message = refused("train", *TINY, f"hydra.run.dir={folder}")
        assert matches(
            "hydra.run.dir: ...xxx cannot be made (File name too long); give a folder ...", message
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        patch.setattr(sys, "argv", ["hydrant"])
        assert cli.main(["train", *TINY, f"hydra.run.dir={folder}"]) == 0
    return folder


def test_a_run_is_not_continued_with_another_config(workdir: Path, finished: Path, refused: Refused) -> None:
    shutil.copytree(finished, workdir / "outputs" / "run")
    message = refused("train", *TINY, "name=run", "seed=7", "optimizer=sgd")
    assert message.startswith("resume: ")
    assert ": optimizer (AdamW there, SGD here), seed (0 there, 7 here). Give " in message
    assert message.endswith("or a longer duration with resume_strict=false")
    message = refused("train", *TINY, "name=run", "resume=null")
    assert matches("resume: ... holds a run; resume=auto continues it, name=<folder> (in Python ...", message)
    message = refused("train", *TINY, "name=other", "seed=7", "resume=outputs/run")
    assert matches("resume: ... holds a run of another config: seed (0 there, 7 here). Give ...", message)


def test_weights_of_another_model_are_refused(workdir: Path, finished: Path, refused: Refused) -> None:
    message = refused("train", *TINY, f"init_from={finished}", "model.hidden=[5]")
    assert matches(
        "init_from: the weights in ...update_00000002 belong to another model: "
        "hidden.0.0.weight is (256, 16) in the file, (5, 16) in the model, ... and ... more; "
        "choose that model, or write init_strict=false to load those that fit",
        message,
    )
    message = refused("evaluate", str(finished), "model=convnet")
    assert matches("model: the weights in ... belong to another model: ...; choose that model", message)


def test_a_run_folder_without_its_config_is_refused(workdir: Path, finished: Path, refused: Refused) -> None:
    shutil.copytree(finished, workdir / "run")
    (workdir / "run" / "config.yaml").unlink()
    error = "...config.yaml is missing; a run's folder holds its config"
    assert matches(error, refused("evaluate", "run"))
    assert matches(f"resume: {error}", refused("train", *TINY, "resume=run"))
    (workdir / "run" / "config.yaml").write_text("a: [")
    assert matches("...config.yaml is damaged (line ...", refused("evaluate", "run"))


def test_a_damaged_checkpoint_is_named(
    workdir: Path, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Status 1: the command is right, a file is not."""
    shutil.copytree(finished, workdir / "run")
    damaged = "run/checkpoints/update_00000002/model.safetensors"
    (workdir / damaged).write_text("junk")
    for words in (["evaluate", "run"], ["train", *TINY, "init_from=run"], ["train", *TINY, "resume=run"]):
        assert cli.main(words) == 1
        message = capfd.readouterr().err.splitlines()[-1]
        assert matches(
            f"error: all checkpoints in run/checkpoints are damaged: ...{damaged} has 4 bytes instead of ...",
            message,
        )
        assert cli.main([word.replace("run", "run/checkpoints/update_00000002") for word in words]) == 1
        message = capfd.readouterr().err.splitlines()[-1]
        assert matches(
            f"error: ...{damaged} has 4 bytes instead of ...; remove ... to use an older checkpoint", message
        )
    assert not (workdir / "outputs").exists()


@pytest.mark.extension
def test_an_export_goes_to_a_file(workdir: Path, finished: Path, refused: Refused) -> None:
    assert matches("--output: . cannot be written (...", refused("export", str(finished), "--output", "."))


@pytest.mark.extension
def test_onnx_names_missing_packages(
    finished: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda name: None)
    message = refused("export", str(finished), "--format", "onnx")
    assert message == f"--format: onnx needs onnx, onnxscript, onnxruntime: {install_command('onnx')}"


@pytest.mark.extension
@pytest.mark.parametrize(("launcher", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_error_names_the_missing_package(
    launcher: str, package: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda name: None)
    message = refused("train", "-m", *TINY, f"hydra/launcher={launcher}", "seed=0,1")
    assert message == f"hydra/launcher: {launcher} needs {package}: {install_command(launcher)}"


@pytest.mark.extension
def test_a_search_names_the_missing_package(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = refused("train", "-m", *TINY, "sweep=optuna")
    assert message == f"hydra/sweeper: optuna needs optuna: {install_command('optuna')}"


def test_errors_about_user_modules(workdir: Path, refused: Refused) -> None:
    (workdir / "my_half.py").write_text("import no_such_package\n")
    (workdir / "my_broken.py").write_text("raise RuntimeError('not today')\n")
    (workdir / "my_few.py").write_text(
        "LEVEL = 3\n\ndef build(*, input_shape, num_classes, hidden, dropout, depth):\n    ...\n"
    )
    expected = {
        "my_half.Net": "my_half cannot be imported: ModuleNotFoundError: No module named 'no_such_package'",
        "my_broken.Net": "my_broken cannot be imported: RuntimeError: not today",
        "my_few.LEVEL": "my_few.LEVEL is a int, not a class or a function",
        "my_few.biuld": "my_few has no 'biuld'; did you mean 'build'?",
    }
    for target, error in expected.items():
        message = refused("train", "allow_targets=[my_half,my_broken,my_few]", f"model._target_={target}")
        assert message == f"model._target_: {error}"
    message = refused("train", "allow_targets=[my_few]", "model._target_=my_few.build")
    assert message == "model.depth: my_few.build needs a value; give +model.depth=<value>"
    (workdir / "my_buggy.py").write_text(
        "from hydrant.models import MLP\n"
        "class Net(MLP):\n    def forward(self, inputs):\n        return self.depth\n"
    )
    message = refused("train", "allow_targets=[my_buggy]", "model._target_=my_buggy.Net")
    assert matches(
        "model: fails in a trial of an evaluation, on inputs ... AttributeError: ... no attribute 'depth' "
        "(at my_buggy.py:4: return self.depth; "
        "... has the traceback). Correct the model, the task or the data",
        message,
    )
    traceback = Path(message.partition("self.depth; ")[2].partition(" has the traceback")[0]).read_text()
    assert f'File "{workdir}/my_buggy.py", line 4, in forward' in traceback
    (workdir / "my_slip.py").write_text(
        "from hydrant.models import MLP\n"
        "class Net(MLP):\n    def __init__(self, **sizes):\n        super().__init__(**sizes)\n"
        "        self.width = sizes['hiden']\n"
    )
    message = refused("train", "allow_targets=[my_slip]", "model._target_=my_slip.Net")
    assert matches(
        "model: my_slip.Net refuses it: KeyError: 'hiden' (at my_slip.py:5: self.width = sizes['hiden']; ...)",
        message,
    )


@pytest.mark.parametrize("sizes", ["global_batch_size=1", "global_batch_size=4 micro_batch_size=1"])
def test_one_sample_for_batch_norm(sizes: str, workdir: Path, refused: Refused) -> None:
    (workdir / "mine.py").write_text(
        "from torch import nn\n"
        "def net(*, input_shape, num_classes, pooled, **_):\n"
        "    pool = [nn.AdaptiveAvgPool2d(1)] if pooled else []\n"
        "    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes)]\n"
        "    return nn.Sequential(nn.Conv2d(1, 3, 1), *pool, nn.BatchNorm2d(3), *head)\n"
    )
    model = ["allow_targets=[mine]", "model._target_=mine.net", "+model.pooled=true"]
    message = refused("train", *TINY, *model, *sizes.split())
    assert message.startswith("model: fails in a trial of training, on inputs of shape [1, 1, 4, 4] ")
    assert "Expected more than 1 value per channel when training" in message
    for fitting in ([*model, "micro_batch_size=2"], [*model, *sizes.split(), "model.pooled=false"]):
        assert prepare_all([check(compose([*TINY, *fitting]))]) == [None]


def test_errors_about_user_configs(workdir: Path, refused: Refused) -> None:
    folder = workdir / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /optimizer: adamm\n")
    (folder / "torn.yaml").write_text("# @package _global_\nseed: [1\n")
    (folder / "typo.yaml").write_text("# @package _global_\nsead: 1\n")
    (folder / "number.yaml").write_text("# @package _global_\nseed: one\n")
    messages = {
        "mine": "optimizer: no option 'adamm'; did you mean 'adam'...",
        "torn": "...torn.yaml: line ...: expected ',' or ']'...",
        "typo": "sead: no such key; did you mean 'seed'? There are ...",
        "number": "seed: needs a whole number of 0 or more, not 'one'",
    }
    for option, expected in messages.items():
        message = refused("train", f"experiment={option}")
        assert matches(expected, message), message
