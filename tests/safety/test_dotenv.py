"""`.env`: its variables are set for a command and all that it starts, and its values are written nowhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from marks import slow
from tiny_runs import TINY

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.files.redaction import redacted_text
from hydrant.safety import trust
from hydrant.safety.dotenv import parse, read_dotenv

VALUE = "correct-horse/battery 'staple'"
NOTES = "notes=${oc.env:LAB_PHRASE,none}"


@pytest.fixture
def folder(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which is trusted, with a `.env`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(workdir.parent / f"{workdir.name}-config"))
    trust.trust(workdir, [])
    (workdir / ".env").write_text(f'LAB_PHRASE="{VALUE}"\n')
    return workdir


@pytest.fixture
def _restored_variables() -> Iterator[None]:
    before = os.environ.copy()
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=1", "1"), ("export A=1", "1"), (" A = 1 ", "1"), ("A=", ""), ("A= # none", ""), ("A=a#b # c", "a#b"),
        ("A='a # b'", "a # b"), ('A="a # b" # c', "a # b"), (r'A="a\"b\\n\n"', 'a"b\\n\n'), (r"A='a\n'", r"a\n"),
        ("A=$HOME", "$HOME"), ("A=b=c", "b=c"), ("\ufeffA=1", "1"), ("\ufeff\ufeffA=1", "1"),
        ("A=1\r\n# x\r\n", "1"), ("A=é", "é"),
    ],
)  # fmt: skip
def test_lines_are_read_as_a_shell_reads_them(line: str, value: str) -> None:
    assert parse(line.encode()) == {"A": value}


def test_a_link_that_leads_nowhere_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".env").unlink()
    (folder / ".env").symlink_to("../secrets")
    with pytest.raises(ConfigError, match=r"\.env: is a link to \.\./secrets, which does not exist"):
        read_dotenv()
    trust.distrust(folder)
    assert "is not read" in read_dotenv()


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "TORCH_HOME", "WANDB_ENTITY", "HF_TOKEN", "MLFLOW_TRACKING_URI"]
)
def test_other_variables_are_set(name: str) -> None:
    assert parse(f"{name}=1".encode()) == {name: "1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"secret words", "line 1 is not NAME=value"), (b"\n1A=secret", "line 2 is not NAME=value"),
        (b"A='secret", "line 1 has a quote that is not closed"), (b"A='secret' x", "line 1 has a quote"),
        (b"A=secret\nA=secret", "line 2 sets A again"), (b"A=1\nB=\xff", "line 2 is no text in UTF-8"),
        (b"A=sec\0ret", "line 1 is not NAME=value"),
        *((f"{name}=secret".encode(), f"line 1 may not set {name}") for name in (
            "BASH_ENV", "ENV", "GIT_SSH_COMMAND", "CC", "CXX", "CUDA_HOME", "TORCHINDUCTOR_CACHE_DIR",
            "TRITON_CACHE_DIR", "MPLCONFIGDIR", "TMPDIR", "XDG_CACHE_HOME", "HF_DATASETS_TRUST_REMOTE_CODE",
            "PYTHONPATH", "PYTHONSTARTUP", "LD_PRELOAD", "DYLD_INSERT_LIBRARIES", "HYDRANT_ALLOW_TARGETS", "PATH",
            "HOME", "XDG_CONFIG_HOME", "HYDRANT_DOTENV")),
    ],
)  # fmt: skip
def test_wrong_lines_are_refused_without_their_values(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse(content)
    assert "secret" not in str(error.value)


@pytest.mark.usefixtures("_restored_variables")
def test_variables_that_are_set_win(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_NAME", "from the shell")
    (folder / ".env").write_text("LAB_NAME=from the file\nLAB_PHRASE=from the file\n")
    assert read_dotenv() == ""
    assert (os.environ["LAB_NAME"], os.environ["LAB_PHRASE"]) == ("from the shell", "from the file")
    assert redacted_text("from the shell, from the file") == "from the shell, ***"


@pytest.mark.usefixtures("_restored_variables")
def test_settings_of_libraries_are_shown_unless_their_names_are_of_secrets(folder: Path) -> None:
    (folder / ".env").write_text("WANDB_PROJECT=residual_nets\nMLFLOW_TRACKING_PASSWORD=residual-net\n")
    assert read_dotenv() == ""
    assert redacted_text("wandb.ai/lab/residual_nets residual-net") == "wandb.ai/lab/residual_nets ***"


def test_a_folder_that_is_not_trusted_sets_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trust.distrust(folder)
    assert cli.main(["train", "name=run", *TINY, NOTES]) == 0
    assert "error" not in (output := capfd.readouterr().err)
    assert ".env is not read, because this folder is not trusted" in output
    assert "notes: none" in (folder / "outputs" / "run" / "config.yaml").read_text()


def test_a_file_that_anybody_may_write_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".env").chmod(0o666)
    assert cli.main(["preview", *TINY]) == 2
    assert "may be written by anybody" in capsys.readouterr().err


# torch's elastic agent does not close the files with the output of the ranks.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*hydrant-ranks:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    "words", [(), *slow((("--multirun", "seed=0,1"),)), *slow((("parallel.num_processes=2",),))]
)
def test_values_reach_runs_and_are_written_nowhere(
    words: tuple[str, ...], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "shouts.py").write_text(
        "import logging, os\nclass Hook:\n    def on_start(self, trainer):\n"
        "        logging.getLogger('hydrant').warning('the phrase: %s', os.environ['LAB_PHRASE'])\n"
        "        trainer.log.text('phrase', os.environ['LAB_PHRASE'])\n"
    )
    hook = ("allow_targets=[shouts]", "+hooks.shout={_target_: shouts.Hook}")
    assert cli.main(["train", "name=run", *TINY, *words, NOTES, *hook]) == 0
    assert "LAB_PHRASE" not in os.environ
    [log, *_] = sorted(folder.glob("*/run/**/train.log"))
    assert "the phrase: ***" in log.read_text()
    assert "notes: '***'" in log.with_name("config.yaml").read_text()
    (folder / ".env").unlink()
    everything = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    output = capfd.readouterr()
    for text in (*everything, output.out.encode(), output.err.encode()):
        assert b"battery" not in text
