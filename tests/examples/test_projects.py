"""The projects of examples/: the commands of their README train, in few updates."""

import re
import shlex

import pytest
from example_projects import EXAMPLES, use_example
from marks import slow
from run_folders import rows
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose

FEW = ("duration=4", "eval_every=2", "save_every=2", "limit_val_samples=64", "log_every=1", "tracker=local")
COMMANDS = {
    (folder.name, tuple(shlex.split(command, comments=True)))
    for folder in EXAMPLES.iterdir()
    if folder.is_dir() and folder.name not in ("five", "loops")  # which have tests of their own
    for command in re.findall(
        r"^uv run hydrant train (.*)$", (folder / "README.md").read_text(), re.MULTILINE
    )
}
OF_GAN = {command for command in COMMANDS if command[0] == "gan"}
WITH_FILES = ("airbench", "track3")
"""Projects that need a download. Their own tests train them with files that they write."""


@pytest.mark.parametrize(("name", "words"), [*sorted(OF_GAN), *slow(*sorted(COMMANDS - OF_GAN))])
def test_a_command_of_a_readme_trains(
    name: str, words: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_example(name, monkeypatch)
    if name in WITH_FILES:
        check(compose([*words, "data.fingerprint=null", "data.separator=null", "data.separator_position=null"]
                      if name == "track3" else words))  # fmt: skip
        return
    few = (
        FEW
        if "experiment=grokking" not in words
        else (*FEW, "model.width=16", "model.num_heads=2", "scheduler.warmup=0")
    )
    run = train(*words, *few)
    assert [row["num_updates"] for row in rows(run) if "train/loss" in row or "optim/lr" in row][-1] == 4
    assert any(key.startswith("val/") for row in rows(run) for key in row)


def test_each_project_is_listed_and_has_a_short_readme() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\1/README\.md\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
    assert all(len((EXAMPLES / name / "README.md").read_text().split()) <= 160 for name in listed)
