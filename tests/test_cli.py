"""The command line when its output is closed or cannot be written."""

import contextlib
import errno
import logging
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, NoReturn

import pytest
from marks import each, of_extension, slow
from run_folders import rows, summary

from hydrant import cli, installation
from hydrant.commands.registry import commands, flags_of
from hydrant.config.command_line import Flags

HYDRANT = Path(sys.executable).with_name("hydrant")


@pytest.mark.parametrize(
    "words", [("--help",), *slow((("train", "--cfg", "job"),), (("--version",),), (("train", "--help"),))]
)
def test_closed_stdout_ends_a_command_like_a_signal(words: tuple[str, ...]) -> None:
    """As in `hydrant --help | head -1`, if `head` has ended before the help is printed."""
    done = subprocess.run(
        [HYDRANT, *words], stdout=closed_pipe(), stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("words", [("train", "optimizer=unknown"), *slow((("unknown",),))])
def test_closed_stderr_changes_no_exit_status(words: tuple[str, ...]) -> None:
    pipe = closed_pipe()
    assert subprocess.run([HYDRANT, *words], stdout=pipe, stderr=pipe, check=False).returncode == 2


def test_full_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fill_memory(arguments: list[str]) -> int:
        return len(bytearray(sys.maxsize))

    monkeypatch.setattr("hydrant.commands.trust.main", fill_memory)
    assert cli.main(["trust"]) == 1
    assert capsys.readouterr().err.startswith("error: the memory of this machine")


def deny(command: str, number: int, filename: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a command meet a file that it may not read; root may read all."""

    def fail(arguments: list[str]) -> NoReturn:
        raise PermissionError(number, "Permission denied", filename)

    monkeypatch.setattr(commands()[command].function.replace(":", "."), fail)


@pytest.mark.parametrize("words", ["status", *of_extension("log /home/other")])
def test_a_folder_of_somebody_else_is_one_line(
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="hydrant")
    deny(words.split()[0], errno.EACCES, "/home/other/run/config.yaml", monkeypatch)
    assert cli.main(words.split()) == 2
    error = "error: /home/other/run/config.yaml: Permission denied; ask its owner, or give another path\n"
    assert capsys.readouterr().err == error
    assert "in fail" in caplog.text  # the traceback


@pytest.mark.parametrize(
    ("words", "number", "filename"),
    [
        ("evaluate run", errno.EACCES, "/data/images"),  # by code of the user
        ("train --cfg job", errno.EACCES, "outputs/run/summary.json"),
        *[("status run", errno.EACCES, unnamed) for unnamed in (3, b"run", None)],
    ],
)
def test_other_refusals_of_the_system_keep_their_traceback(
    words: str, number: int, filename: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(words.split()[0], number, filename, monkeypatch)
    with pytest.raises(PermissionError):
        cli.main(words.split())


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("words", [("--version",), *slow((("list",),), (("train", "--cfg", "job"),))])
def test_a_command_fails_if_its_result_cannot_be_printed(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [HYDRANT, *words], stdout=full_disk(), stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "error: stdout cannot be written: No space left on device\n")


NO_OUTPUT = {
    "closed": ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"),
    "full": ("sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["full", "closed"])
@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ((), "outputs/run"),
        (("parallel.num_processes=2",), "outputs/run"),
        (("--multirun", "hydra.sweep.subdir=job"), "multirun/run/job"),
    ],
)
def test_a_run_does_not_need_its_output(how: str, words: tuple[str, ...], folder: str, workdir: Path) -> None:
    """The processes of ranks and jobs inherit the streams."""
    run = ("train", "name=run", "tracker=local", "model.hidden=[4]", "duration=2", "log_every=1")
    done = subprocess.run([*NO_OUTPUT[how], str(HYDRANT), *run, *words], check=False)
    assert done.returncode == 0
    assert summary(workdir / folder)["status"] == "finished"
    assert {row["num_updates"] for row in rows(workdir / folder)} == {0, 1, 2}
    assert "Traceback" not in (workdir / folder / "train.log").read_text()


@pytest.mark.parametrize("how", ["full", *slow("closed")])
def test_a_wrong_config_needs_no_output(how: str, workdir: Path) -> None:
    words = ("train", "tracker=local", "optimizer=unknown")
    assert subprocess.run([*NO_OUTPUT[how], str(HYDRANT), *words], check=False).returncode == 2


def test_a_removed_working_folder_is_reported(tmp_path: Path) -> None:
    for words in (["--version"], ["train"]):
        folder = tmp_path / "removed"
        folder.mkdir()
        command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", str(HYDRANT), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr == "error: the working folder has been removed; change to another one\n"


def test_a_working_folder_whose_name_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert cli.main(["train"]) == 2
    error = capfd.readouterr().err
    assert "is not UTF-8, which the record of a run cannot hold; rename it, if it is a folder" in error


@pytest.mark.parametrize(
    ("word", "flag"), [("help train", "train --help"), ("help", "--help"), ("version", "--version")]
)
def test_help_and_version_may_be_words(word: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = list[str]()
    for words in (word, flag):
        assert cli.main(words.split()) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize(
    "words", ["status loop", "trust loop", "evaluate loop", *of_extension("compare loop", "predict loop val")]
)
def test_a_link_to_itself_is_one_line(words: str, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "loop").symlink_to("loop")
    assert cli.main(words.split()) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert "loop" in error


def closed_pipe() -> int:
    """Return the writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    ("command", "has", "lacks"),
    [
        ("train", "sweep hydra/sweeper optimizer", "none"),
        ("preview", "optimizer scheduler", "sweep hydra/launcher hydra/sweeper"),
        ("evaluate", "data precision task", "optimizer scheduler sweep hydra/launcher"),
        *of_extension(
            ("train", "hydra/launcher", "none"),
            ("study", "sweep hydra/launcher optimizer", "hydra/sweeper"),
            ("compare", "", "data optimizer"),
        ),
    ],
)
def test_the_help_of_a_command_lists_the_groups_that_it_reads(command: str, has: str, lacks: str) -> None:
    listed = set(re.findall(r"[\w/]+", cli.help_of(command).partition("Groups: ")[2].partition(";")[0]))
    assert listed >= set(has.split())
    assert not listed & set(lacks.split())


@pytest.mark.parametrize("columns", ["40", "80", "200"])
@pytest.mark.parametrize("command", ["", *each(commands())])
def test_help_fits_into_the_terminal(
    command: str, columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    long = [line for line in lines if len(line) > min(int(columns), 110)]
    # One word may be longer than 40.
    assert [line for line in long if len(line.split()) > 2 or columns != "40"] == []


@pytest.mark.parametrize("command", each(name for name in commands() if name != "train"))
def test_help_explains_every_flag(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells no other. Those of `train` are Hydra's; docs/reference/hydra.md has them all."""
    flags = set[str]()

    class Seen(Exception):
        pass

    def split(self: Flags, arguments: object) -> None:
        flags.update(flag for flag in self.options() if flag.startswith("--"))
        raise Seen

    monkeypatch.setattr(Flags, "split", split)
    with contextlib.suppress(Seen):
        cli.main([command, "--unknown"])
    assert set(flags_of(command)) - {"--help"} == flags


def test_headings_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\nOptions:\n" in cli.help_of("status")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\n\033[1mOptions:\033[0m\n" in cli.help_of("status")


def test_two_packages_with_one_name_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = [EntryPoint("log", f"{package}:COMMAND", "hydrant.commands") for package in "ba"]
    monkeypatch.setattr(installation, "_installed", lambda: EntryPoints(points))
    assert installation.entry_points.__wrapped__("hydrant.commands")["log"].value == "a:COMMAND"
    assert "b:COMMAND is left out" in caplog.text
