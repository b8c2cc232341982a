"""The five examples of examples/five learn, resume exactly and do not depend on the number of ranks."""

import random
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from example_projects import EXAMPLES as PROJECTS
from killing import run_with_kills
from run_folders import assert_close_rows, assert_same_state, rows, saved, summary
from training_runs import Train, train_in_child, whole_and_resumed

FIVE = PROJECTS / "five"


@dataclass(frozen=True)
class Example:
    """An example, shortened."""

    name: str
    metric: str
    trivial: float
    """The metric without learning."""
    words: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """The parts of the example apart from its experiment: their files begin with these words."""


EXAMPLES = [
    Example(
        "characters", "val/accuracy", 0.19,  # always a space
        ("data.train.length=16", "limit_train_samples=320", "limit_val_samples=64", "optimizer.lr=0.03",
         "hooks.samples.function.length=4", "data.num_workers=0"),
        ("characters.py", "conf/model/characters.yaml"),
    ),
    Example("houses", "val/r2", 0.0, ()),  # always the mean price
    Example("labels", "val/f1", 0.6, ("optimizer.lr=0.03",)),  # each sample has all labels
    Example(
        "segments", "val/iou", 0.27,  # only background
        ("data.num_workers=0", "limit_val_samples=32", "optimizer.lr=0.03"),
        ("segments.py", "conf/model/small_unet.yaml"),
    ),
    Example(
        "tags", "val/accuracy", 0.777,  # always tag 0
        ("data.num_workers=0", "optimizer.lr=0.02", "limit_val_samples=128"),
        ("tags.py", "conf/model/tagger.yaml"),
    ),
]  # fmt: skip
SHORT = ("tracker=local", "global_batch_size=16", "micro_batch_size=8", "log_every=10", "duration=30",
         "eval_every=30", "save_every=10")  # fmt: skip
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the files of the projects, and the data that their script makes."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(FIVE, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile((folder / "make_data.py").read_text(), "make_data.py", "exec"), {})
    before = set(sys.modules)
    yield folder
    for name in {"characters", "segments", "tags"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def workdir(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test alone, with links to the files of the projects."""
    for entry in project.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.setenv("HYDRANT_ALLOW_TARGETS", "characters,segments,tags")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words_of(example: Example) -> tuple[str, ...]:
    return (f"experiment={example.name}", *SHORT, *example.words)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_learns_and_resumes_exactly(
    example: Example, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, words_of(example), stop_at=13)
    assert rows(whole)[-1][example.metric] > example.trivial
    assert rows(whole) == rows(resumed)
    for part in ("model", "training"):
        assert_same_state(saved(whole, part), saved(resumed, part))


@pytest.mark.slow
@each_example
def test_an_example_reaches_what_its_readme_shows(example: Example, train: Train) -> None:
    """Other processors round otherwise, so the last digit may differ."""
    shown = re.findall(r"^\| .*?`(val/\w+)` ([\d.]+)", (FIVE / "README.md").read_text(), re.MULTILINE)
    assert len(shown) == len(EXAMPLES)
    metric, value = shown[EXAMPLES.index(example)]
    best = summary(train(f"experiment={example.name}", "tracker=local"))["best"]
    assert (best["metric"], best["value"]) == (metric, pytest.approx(float(value), rel=0.01))


@each_example
def test_an_example_has_at_most_60_lines(example: Example) -> None:
    files = (f"conf/experiment/{example.name}.yaml", *example.modules)
    assert sum((FIVE / file).read_text().count("\n") for file in files) <= 60


@pytest.mark.slow
@each_example
def test_a_killed_example_ends_like_a_whole_one(example: Example, workdir: Path) -> None:
    words = (*words_of(example), "log_every=1", "save_every=5")
    done = run_with_kills(workdir, "kills", words, 2, random.Random(0))
    assert done["kills"]
    assert done["differing"] == []


@pytest.mark.slow
@each_example
def test_an_example_does_not_depend_on_the_number_of_ranks(example: Example, workdir: Path) -> None:
    one = train_in_child(workdir, "one", *words_of(example))
    two = train_in_child(workdir, "two", *words_of(example), "parallel.num_processes=2")
    assert_close_rows(one, two, rel=1e-3, abs=1e-4)
