"""Damaged and forged run folders: every command that reads one ends in time, with one line and the right status."""

import contextlib
import csv
import functools
import io
import itertools
import json
import random
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from attacks import Trials
from folder_faults import Fault, faults
from processes import fork, wait_for_fork
from run_folders import rows, summary
from tiny_runs import TINY

from hydrant import cli
from hydrant.commands import registry
from hydrant.errors import RecordError
from hydrant.files.on_disk import remove
from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps.plan import write_plan

FILES = {"summary.json": "json", "config.yaml": "yaml", "metrics.jsonl": "lines", "schedule.json": "json",
         ".hydra/overrides.yaml": "yaml", ".hydra/hydra.yaml": "yaml", ".hydra/config.yaml": "yaml",
         "histograms.jsonl": "lines", "compile_report.json": "json", "train.log": "bytes", ".hydra": "folder",
         "checkpoints": "folder"}  # fmt: skip
PLAN = {"sweep.json": "json"}
TRAIN = ["train", *TINY, "keep_last=3", "duration=6"]
CPU_SECONDS, WAIT_SECONDS = 10, 120  # for one command


@dataclass(frozen=True)
class Printed:
    """How a command ended."""

    words: Sequence[str]
    status: int
    out: str
    err: str

    def problems(self) -> Iterator[str]:
        """Yield what no command may do, whatever it reads."""
        text = self.out + self.err
        if self.status not in (0, 1, 2):
            yield f"ended with {self.status}: {self.err[-600:]}"
        if "Traceback" in text or "has the traceback" in text:
            yield f"an unexpected error: {self.err[-600:]}"
        reason = '{"version"' if "--json" in self.words else "error: "
        if self.status in (1, 2) and not self.err.strip().rpartition("\n")[2].startswith(reason):
            yield f"no reason: {self.err[-300:]}"
        if found := re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text):
            yield f"prints {found[0]!r}: {text[max(found.start() - 50, 0) : found.end() + 50]!r}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two equal runs, `victim` and `other`. This process imports what its forks need."""
    folder = tmp_path_factory.mktemp("trained")
    assert [cli.main([*TRAIN, f"hydra.run.dir={folder / name}"]) for name in ("victim", "other")] == [0, 0]
    assert cli.main(["status", "--json", str(folder)]) == 0
    return folder


@pytest.fixture
def sweep(trained: Path, workdir: Path) -> Path:
    """A sweep of these runs."""
    sweep = shutil.copytree(trained, workdir / "study", symlinks=True)
    write_plan(sweep, SweepPlan(1.0, [PlannedJob(name, ["seed=0"]) for name in ("victim", "other")]))
    return sweep


def attempts(commands: Sequence[Sequence[str]], report: Path) -> list[Printed]:
    """Call commands in a fork, and those behind one that died or hung in another. Return how they ended."""
    ended = list[Printed]()
    error = report.with_suffix(".err")
    while len(ended) < len(commands):
        report.write_text("")
        error.unlink(missing_ok=True)
        status = wait_for_fork(fork(functools.partial(_call, commands[len(ended) :], report)))
        ended += [Printed(**json.loads(line)) for line in report.read_text().splitlines()]
        if status:
            text = error.read_text() if error.exists() else ""
            ended.append(Printed(commands[len(ended)], status, "", text))
    return ended


def _call(commands: Sequence[Sequence[str]], report: Path) -> None:
    with report.open("a") as file:
        for words in commands:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # these signals end the process
            signal.alarm(WAIT_SECONDS)
            out, err = io.StringIO(), io.StringIO()
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    ended = cli.main(list(words))
            except BaseException:
                report.with_suffix(".err").write_text(traceback.format_exc())
                raise
            file.write(json.dumps(asdict(Printed(words, ended, out.getvalue(), err.getvalue()))) + "\n")
            file.flush()


def table_command(sweep: Path, rng: random.Random) -> list[list[str]]:
    """Return a command that reads every run of a sweep, of those that are installed."""
    page = f"--html={sweep.parent / 'page.html'}"
    forms = ["--json --details", "--csv", page, "--target=val/loss<=0.9", "--by=seed,optimizer.lr"]
    commands = [
        ["status", *rng.choice([[], ["--json"]])],
        ["compare", *rng.choice([[], *(form.split() for form in forms)])],
        ["sync", "--dry-run"],
        ["log"],
    ]
    return [[*rng.choice([words for words in commands if words[0] in registry.commands()]), str(sweep)]]


def hidden(printed: Printed, fault: Fault, sweep: Path) -> Iterator[str]:
    """Yield what a table does not show as it should."""
    if printed.status != 0:
        yield f"exit status {printed.status}, although the other run can be shown: {printed.err[-300:]}"
    elif "--json" in printed.words:
        content: Any = json.loads(printed.out, parse_constant=_refuse)
        runs = content["runs"] if "compare" in printed.words else next(iter(content["folders"].values()))
        states = {Path(run.get("name", run.get("run"))).name: run["state"] for run in runs}
        if states.get("other") != "finished" and "repeat" not in states.values():
            yield f"the other run is shown as {states}"
    elif "--csv" in printed.words:
        for cell in (cell for row in csv.reader(io.StringIO(printed.out)) for cell in row):
            if cell.startswith(("=", "+", "@")) or re.match(r"-[^\d.in]", cell):
                yield f"the formula {cell!r}"


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} in JSON")


def start_commands(sweep: Path, rng: random.Random) -> list[list[str]]:
    """Return commands that read or continue a run, and last the one that resumes it."""
    victim, more = sweep / "victim", f"hydra.run.dir={sweep / 'more'}"
    others = [
        ["export", str(victim)],
        [*TRAIN, f"resume={victim}", more],
        [*TRAIN, f"init_from={victim}", more],
    ]
    evaluate = ["evaluate", str(victim), *rng.choice([[], ["--json"], ["eval_batch_size=4"]])]
    return [evaluate, rng.choice(others), [*TRAIN, f"hydra.run.dir={victim}"]]


def wrong_result(printed: Printed, fault: Fault, sweep: Path) -> Iterator[str]:
    """Yield what is wrong with a run that was resumed."""
    if printed.status != 0 or f"hydra.run.dir={sweep / 'victim'}" not in printed.words:
        return
    if summary(sweep / "victim")["status"] != "finished":
        yield "exit status 0, but the run has not finished"
    elif fault.file != "metrics.jsonl" and rows(sweep / "victim") != rows(sweep / "other"):
        yield "the resumed run has other rows"


def interrupt(run: Path) -> None:
    """Bring a run into the state of one that was killed after its first checkpoint."""
    for num_updates in (4, 6):
        shutil.rmtree(run / "checkpoints" / f"update_{num_updates:08d}")
    (run / "summary.json").write_text(json.dumps({**summary(run), "status": "running", "num_updates": 2}))


def attack(
    sweep: Path,
    cases: Iterable[Fault],
    commands_for: Callable[[Path, random.Random], list[list[str]]],
    problems_of: Callable[[Printed, Fault, Path], Iterator[str]],
) -> None:
    """Apply each fault to a copy of the sweep, and report all problems together."""
    rng, found, faults = random.Random(0), list[str](), list(cases)
    copies = [sweep.parent / f"trial{place}" / "study" for place in range(len(faults))]
    for fault, copy in zip(faults, copies, strict=True):
        shutil.copytree(sweep, copy, symlinks=True)
        fault.apply((copy if fault.file in PLAN else copy / "victim") / fault.file)
    commands = [commands_for(copy, rng) for copy in copies]
    ended = iter(attempts([words for each in commands for words in each], sweep.parent / "report"))
    for fault, copy, each in zip(faults, copies, commands, strict=True):
        for printed in itertools.islice(ended, len(each)):
            problems = [*printed.problems(), *problems_of(printed, fault, copy)]
            found += [f"{fault}: {' '.join(printed.words)}: {problem}" for problem in problems]
    assert not found, "\n".join([f"{len(found)} problems", *found])


def some(faults: Iterable[Fault], num: int) -> list[Fault]:
    return random.Random(1).sample(list(faults), num)


def test_a_damaged_run_ends_no_table_of_others(trials: Trials, sweep: Path) -> None:
    cases = some(faults(sweep / "victim", FILES, random.Random(2)), 600)
    attack(sweep, trials.of(cases), table_command, hidden)


def test_a_damaged_plan_ends_no_table_of_its_runs(trials: Trials, sweep: Path) -> None:
    cases = some(faults(sweep, PLAN, random.Random(3)), 200)
    attack(sweep, trials.of(cases), table_command, hidden)


def test_a_start_from_a_damaged_run_succeeds_or_says_why_not(trials: Trials, sweep: Path) -> None:
    interrupt(sweep / "victim")
    cases = some(faults(sweep / "victim", FILES, random.Random(4)), 50)
    attack(sweep, trials.of(cases), start_commands, wrong_result)


def test_damaged_wandb_data_are_read_or_refused(trials: Trials, workdir: Path) -> None:
    """`hydrant sync` reads the offline data of runs before it sends them."""
    from wandb.proto.wandb_internal_pb2 import HistoryRecord, Record, RunRecord

    from hydrant.extensions.wandb.sync import read_records, remaining_records, write_records

    file = workdir / "run-1.wandb"
    records = [Record(run=RunRecord(run_id="1")), *(Record(history=HistoryRecord()) for _ in range(9))]
    write_records(file, [*records, Record(run=RunRecord(notes="x" * 70_000))])
    rng = random.Random(5)
    cases = list(faults(workdir, {file.name: "bytes"}, rng))
    for _ in range(200):  # with right checksums
        content = [Bytes(rng.randbytes(rng.choice([1, 3, 50]))) for _ in range(3)]
        cases.append(Fault(file.name, repr(content), functools.partial(write_records, records=content)))
    whole = file.read_bytes()
    for fault in trials.of(cases):
        remove(file)
        file.write_bytes(whole)
        fault.apply(file)
        with contextlib.suppress(RecordError):
            assert len(remaining_records(read_records(file), 2, workdir)) <= len(records) + 3, fault


@dataclass(frozen=True)
class Bytes:
    """A record of any content."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
        return self.data
