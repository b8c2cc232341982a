"""`hydrant eject`: the file trains bit for bit what the config trains, for random combinations of options."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import Train

from hydrant import cli
from hydrant.commands.eject import program
from hydrant.commands.eject.assemble import assemble
from hydrant.commands.eject.cut import cut
from hydrant.commands.eject.guide import page, refused_options
from hydrant.commands.eject.refusals import check_possible
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.build import prepare
from hydrant.training.loop import train as train_loop
from hydrant.training.plan import Plan
from hydrant.training.scratch import scratch_trainer
from hydrant.training.trainer import NullRunLogger

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "eject.md"
TINY = (
    "tracker=local", "duration=7", "log_every=3", "eval_every=2", "save_every=3", "global_batch_size=32",
    "limit_train_samples=100", "limit_val_samples=50", "name=ejected",
)  # fmt: skip
OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd",
)  # fmt: skip
SCHEDULES = (
    "constant", "cosine", "cosine_restarts", "cyclic", "exponential", "inverse_sqrt", "linear", "multistep",
    "one_cycle", "polynomial", "rex", "step", "tanh", "wsd",
)  # fmt: skip
OPTIONS: Mapping[str, Sequence[str]] = {
    "optimizer": [f"optimizer={name}" for name in OPTIMIZERS],
    "schedule": [f"scheduler={name}" for name in SCHEDULES],
    "frame": ["", "scheduler.warmup=2", "scheduler.cooldown=1", "scheduler.warmup=1 scheduler.cooldown=2"],
    "model": ["model=mlp", "model=convnet model.widths=[4,8]", "model=deep_linear", "model.dropout=0.5"],
    "precision": [
        "precision=fp32",
        "precision=bf16",
        "precision=fp16",
        "precision=fp16 precision.init_scale=1e6",
    ],
    "clipping": ["", "max_grad_norm=0.1", "max_grad_value=0.01"],
    "accumulation": ["", "micro_batch_size=8"],
    "averaging": ["", "averaging=ema", "averaging=ema averaging.start_after=3 averaging.warmup=false"],
    "mixing": ["", "mixing=mixup", "mixing=mixup_cutmix"],
    "smoothing": ["", "task.label_smoothing=0.1"],
    "data": ["", "data.augment.max_shift=1", "data.augment.flip=true data.test_ratio=0.1", "seed=3"],
}
"""What random configs are made of: by subject, alternatives of overrides."""


@pytest.fixture(autouse=True)
def _unchanged_process() -> Generator[None]:
    """Restore what an ejected program sets in its process."""
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = flags


def run_program(text: str) -> None:
    """Run a program in this process, in the working folder."""
    with contextlib.redirect_stdout(None):
        exec(compile(text, "<ejected>", "exec"), {"__name__": "__main__"})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without those numbers that are times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in rows]


class Rows(NullRunLogger):
    """Writes rows as runs do."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "metrics.jsonl"

    def log(self, row: Mapping[str, float]) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(dict(row)) + "\n")


def train_here(plan: Plan, folder: Path) -> Mapping[str, torch.Tensor]:
    """Train with the loop of Hydrant; return the weights."""
    folder.mkdir()
    with scratch_trainer(plan) as trainer:
        trainer.logger = Rows(folder)
        train_loop(trainer)
        return trainer.model.state_dict()


def random_cases(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield configs with an alternative of each subject: of some drawn ones, that with the most new pairs."""
    generator, covered = random.Random(seed), set[tuple[str, str]]()
    for _ in range(count):
        drawn = [{subject: generator.choice(some) for subject, some in OPTIONS.items()} for _ in range(60)]
        case = max(drawn, key=lambda one: len(pairs_of(one) - covered))
        covered |= pairs_of(case)
        yield case


def pairs_of(case: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return every pair of alternatives in a config."""
    named = [f"{subject}: {words}" for subject, words in case.items()]
    return set(itertools.combinations(named, 2))


def all_pairs() -> set[tuple[str, str]]:
    subjects = [[f"{subject}: {words}" for words in some] for subject, some in OPTIONS.items()]
    return {
        pair for one, other in itertools.combinations(subjects, 2) for pair in itertools.product(one, other)
    }


def check_equal(case: Mapping[str, str], folder: Path) -> None:
    """Check that the program of a config gives the rows and the weights of its run."""
    config = check(compose([*TINY, *" ".join(case.values()).split()]))
    check_possible(config)
    plan = prepare(config)
    text = assemble(cut(plan, "outputs/ejected"), "A program.")
    weights = train_here(plan, folder / "reference")
    run_program(text)
    assert rows_of(folder / "outputs" / "ejected") == rows_of(folder / "reference"), case
    ejected = torch.load(folder / "outputs" / "ejected" / "last.pt", weights_only=True)["model"]
    assert ejected.keys() == weights.keys()
    assert all(torch.equal(ejected[name], value) for name, value in weights.items()), case


def check_cases(cases: Sequence[Mapping[str, str]], workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, case in enumerate(cases):
        folder = workdir / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        check_equal(case, folder)
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    print(f"{len(cases)} configs cover {len(covered)} of {len(all_pairs())} pairs of options")


def test_programs_of_random_configs_train_the_same(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cases(list(random_cases(20, seed=0)), workdir, monkeypatch)


@pytest.mark.slow
def test_programs_of_nearly_all_pairs_of_options_train_the_same(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = list(random_cases(200, seed=1))
    covered = set[tuple[str, str]]().union(*map(pairs_of, cases))
    assert len(covered) >= 0.9 * len(all_pairs())
    check_cases(cases, workdir, monkeypatch)


def test_the_program_equals_the_command(train: Train, workdir: Path) -> None:
    """Also of the run's own file, in a new process, and `hydrant compare` reads both."""
    words = ("tracker=local", "duration=8", "log_every=2", "eval_every=4")
    folder = train(*words)
    assert cli.main(["eject", *words, "name=ejected", "--out", "run.py"]) == 0
    environment_of_torch = f"import torch; torch.set_num_threads({torch.get_num_threads()})"
    start = f"{environment_of_torch}; import runpy; runpy.run_path('run.py', run_name='__main__')"
    subprocess.run([sys.executable, "-c", start], check=True, capture_output=True)
    assert rows_of(Path("outputs/ejected")) == rows_of(folder)
    assert cli.main(["compare", str(folder), "outputs/ejected"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        "",
        pytest.param("precision=fp16 averaging=ema micro_batch_size=8 model=convnet", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_program_continues_to_the_same_numbers(words: str, workdir: Path) -> None:
    text = program(check(compose([*TINY, *words.split()])))
    run_program(text)
    whole = torch.load("outputs/ejected/last.pt", weights_only=True)
    rows = rows_of(Path("outputs/ejected"))
    for file in Path("outputs/ejected").iterdir():
        file.unlink()
    line = "        optimizer.zero_grad()\n"
    stopped = text.replace(line, f"{line}        stop(num_updates)\n")
    assert stopped != text

    def stop(num_updates: int) -> None:
        if num_updates == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError), contextlib.redirect_stdout(None):
        exec(compile(stopped, "<ejected>", "exec"), {"__name__": "__main__", "stop": stop})
    with Path("outputs/ejected/metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 5, "la')  # as of a process that was killed
    run_program(text)
    assert rows_of(Path("outputs/ejected")) == rows
    continued = torch.load("outputs/ejected/last.pt", weights_only=True)
    assert all(torch.equal(continued["model"][name], value) for name, value in whole["model"].items())


def test_programs_are_short_clean_and_import_nothing_of_hydrant(workdir: Path) -> None:
    limits = {"": 265, "scheduler=cyclic": 400, "mixing=mixup precision=fp16 model=convnet": 400}
    for words, limit in limits.items():
        text = program(check(compose(words.split())))
        assert sum(bool(line.strip()) for line in text.splitlines()) <= limit
        imported = set(re.findall(r"^(?:from|import) (\w+)", text, flags=re.MULTILINE))
        assert imported - sys.stdlib_module_names <= {"torch", "torchvision", "timm", "numpy"}
        for command in (["check", "--select", "E4,E7,E9,F,I,B,UP,SIM,RET", "-"], ["format", "--check", "-"]):
            ruff = [
                str(Path(sys.executable).with_name("ruff")),
                command[0],
                "--isolated",
                "--line-length",
                "110",
            ]
            done = subprocess.run(
                [*ruff, *command[1:]], input=text, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("optimizer=lbfgs", "optimizer"),
        ("scheduler=plateau", "scheduler"),
        ("compile=default", "compile"),
        ("patience=3", "patience"),
        ("param_groups.no_decay=true", "param_groups"),
        ("task.class_weights=[1,1,1,1,1,1,1,1,1,2]", "task.class_weights"),
        ("precision=bf16_true", "precision.parameters"),
        ("parallel.num_processes=2", "parallel.num_processes"),
    ],
)
def test_what_cannot_be_ejected_is_refused_by_its_key(
    words: str, key: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["eject", *words.split(), "--out", "run.py"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {key}: ")
    assert not Path("run.py").exists()


def test_no_file_is_overwritten(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.py").write_text("mine")
    assert cli.main(["eject"]) == 2
    assert "--out: run.py exists" in capsys.readouterr().err
    assert Path("run.py").read_text() == "mine"


def test_the_guide_shows_the_program_and_what_cannot_be_ejected() -> None:
    """`python -m hydrant.commands.eject.guide` writes both into the guide."""
    text = GUIDE.read_text(encoding="utf-8")
    assert page(text) == text
    assert "lbfgs" in refused_options()["optimizer"]
