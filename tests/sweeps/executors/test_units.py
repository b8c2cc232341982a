"""The door "units of work", as another package uses it: a launcher that groups jobs and has a queue."""

import os
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from answers import check
from processes import printed
from run_folders import summary
from sweeps import SHORT

from hydrant import cli

PAIRS = """
from pathlib import Path
from hydrant.sweeps.executors.base import Executor, Sequential, Unit

class Pair(Unit):
    @staticmethod
    def execute(jobs):
        results = Unit.execute(jobs)
        (jobs[0].folder.parent / "pairs").open("a").write(f"{len(jobs)} ")
        return results

class Pairs(Executor):
    unit = Pair

    def __init__(self, size: int) -> None:
        self.max_jobs = size

    def units(self, jobs):
        return [Pair(jobs[n : n + self.max_jobs]) for n in range(0, len(jobs), self.max_jobs)]

    def run(self, units, stop_signal):
        return Sequential().run(units, stop_signal)

    @staticmethod
    def cancel(folder: Path) -> list[str]:
        return [f"what waits of {folder.name}"]
"""


def install(site: Path) -> None:
    """Install a package with the launcher, its option and the entry points that name both."""
    option, record = site / "pairs" / "conf" / "hydra" / "launcher", site / "pairs-1.dist-info"
    option.mkdir(parents=True)
    record.mkdir()
    (site / "pairs" / "__init__.py").write_text(PAIRS)
    (option / "pairs.yaml").write_text("_target_: pairs.Pairs\nsize: 2\n")
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: pairs\nVersion: 1\n")
    (record / "entry_points.txt").write_text("[hydrant.parts]\npairs = pairs\n")


@pytest.mark.extension  # `stop` is one
@pytest.mark.usefixtures("forks")
def test_a_launcher_of_another_package_groups_jobs_and_cancels(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(workdir / "site")
    hydrant = partial(printed, sys.executable, "-m", "hydrant", env={**os.environ, "PYTHONPATH": "site"})
    hydrant("train", "-m", "hydra/launcher=pairs", *SHORT, "name=study", "seed=0,1,2")
    sweep = workdir / "multirun" / "study"
    runs = sorted(sweep.glob("*/"))
    assert (sweep / "pairs").read_text() == "2 1 "
    assert [summary(run)["status"] for run in runs] == ["finished"] * 3
    shutil.rmtree(runs[2])  # then the plan alone has it
    stopped = check(hydrant("stop", "--json", sweep, *runs))["stopped"]
    assert [answer["queued"] for answer in stopped] == [[f"what waits of {f.name}"] for f in (sweep, *runs)]
    assert {answer["outcome"] for answer in stopped} == {"cancelled"}
    assert cli.main(["stop", str(sweep)]) == 0  # in this process, which has no such package
    unknown = "multirun/study: 'pairs.Pairs' is not installed here, so its queue is not known\n"
    assert capsys.readouterr() == ("multirun/study: nothing is at work there\n", unknown)
