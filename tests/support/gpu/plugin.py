"""Tests marked `cuda`: in place where a GPU is, else in a process with GPUs of the stub.

    @pytest.mark.cuda                             needs one CUDA device
    @pytest.mark.cuda(devices=2)                  needs two
    @pytest.mark.cuda(stub=True)                  needs the stub, for its record of calls
    @pytest.mark.cuda(memory_gib=1)               needs the stub too, for the size of its memory; so does `level`
    @pytest.mark.real_gpu                         needs what only a GPU computes: Triton's kernels, cuDNN, speed

The tests with the same arguments share a process. It starts when the first of them comes. Where the stub cannot be
built, they are skipped with what it lacks, or fail if `-m` asks for `cuda`. They fail if it does not compile.
"""

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadFileScheduling

from gpu.build import CannotBuild, DoesNotCompile
from gpu.environment import Gpus, environment, is_stub
from gpu.server import Server

_REPORTS = "GPU_STUB_REPORTS"
"""In a process with the stub: the file for the reports of its tests."""
_LIMIT_SECONDS = 3600
_SHOWN = 6000
"""How many characters of a process's output a test shows, if the process has ended without its report."""

_HYDRA_IS_IMPORTED = "-Wignore::pytest.PytestAssertRewriteWarning"
"""Hydra has a plugin of pytest, which would rewrite its assertions."""

Report = dict[str, Any]
_results = pytest.StashKey[dict[Gpus, dict[str, list[Report]]]]()
_server = pytest.StashKey[Server]()


def pytest_configure(config: pytest.Config) -> None:
    """Write reports if this process has the stub, else keep those of such processes."""
    if path := os.environ.get(_REPORTS):
        config.pluginmanager.register(_ReportWriter(config, Path(path)))
    config.stash[_results] = {}
    config.stash[_server] = Server()
    config.add_cleanup(config.stash[_server].close)


class _OneServer(LoadFileScheduling):
    """Gives all files with such tests to one process, whose server imports torch for them."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "gpu" if "mark.cuda" in _text(self.config.rootpath / file) else file


_text = cache(Path.read_text)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Schedule as `--dist loadfile` does, but for files with tests of CUDA."""
    return _OneServer(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what only a real GPU computes."""
    for item in items:
        if item.get_closest_marker("real_gpu") and not _has_gpus(1):
            item.add_marker(pytest.mark.skip(reason="needs a real GPU: the stub has no kernels of CUDA"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test in a process with the stub, with those that share it, and report here what it reports there."""
    group = _group(item)
    if group is None:
        return None
    results = item.config.stash[_results]
    if group not in results:
        results[group] = _results_of(item.session, group)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for data in results[group][item.nodeid]:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        # Where a test is skipped, and why: a tuple that JSON has made a list.
        if isinstance(report.longrepr, list):
            report.longrepr = tuple(report.longrepr)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    # As the protocol of pytest 9.0 (November 2026) ends, without a public way: else the fixtures of a module whose
    # last test runs elsewhere live on, and the next module's first test fails.
    item.session._setupstate.teardown_exact(nextitem)
    return True


def _group(item: pytest.Item) -> Gpus | None:
    """Return which tests share a process of the stub with a test, or None if it runs in this process."""
    mark = item.get_closest_marker("cuda")
    if mark is None or is_stub() or item.get_closest_marker("real_gpu"):
        return None
    options = dict(mark.kwargs)
    needs_stub = options.pop("stub", False) or bool(options.keys() - {"devices"})
    gpus = Gpus(**options)
    return gpus if needs_stub or not _has_gpus(gpus.devices) else None


def _has_gpus(count: int) -> bool:
    return not is_stub() and torch.cuda.is_available() and torch.cuda.device_count() >= count


def _results_of(session: pytest.Session, group: Gpus) -> dict[str, list[Report]]:
    """Run the selected tests of a group; return the reports of each."""
    items = [item for item in session.items if _group(item) == group]
    try:
        variables = environment(group)
    except (CannotBuild, DoesNotCompile) as error:
        is_wanted = "cuda" in session.config.option.markexpr or isinstance(error, DoesNotCompile)
        outcome = "failed" if is_wanted else "skipped"
        return {item.nodeid: [_made_report(item, outcome, str(error))] for item in items}
    with tempfile.TemporaryDirectory() as folder:
        output = _run(session.config, [item.nodeid for item in items], variables, Path(folder))
        reports = _read(Path(folder, "reports"))
    lost = f"the process with the stub has ended without a report of this test; its output ends:\n{output[-_SHOWN:]}"
    return {item.nodeid: reports.get(item.nodeid) or [_made_report(item, "failed", lost)] for item in items}


def _run(config: pytest.Config, nodes: list[str], variables: dict[str, str], folder: Path) -> str:
    """Run tests in one process with the stub; return its output. It appends reports to a file of the folder."""
    selected = folder / "nodes"
    selected.write_text("\n".join(nodes))
    warnings = [f"-W{rule}" for rule in config.option.pythonwarnings or []]
    options = ["-n", "0", "-m", "", "-p", "no:cacheprovider", *warnings, _HYDRA_IS_IMPORTED]
    own = {key: value for key, value in variables.items() if not key.startswith("PYTEST_")}
    own[_REPORTS] = str(folder / "reports")
    # A test of a process that hangs fails, because its report is missing.
    return config.stash[_server].run(
        [*options, f"@{selected}"], own, config.rootpath, folder / "output", _LIMIT_SECONDS
    )


def _read(path: Path) -> dict[str, list[Report]]:
    """Return the reports of each test that has all of them: a process may end within a test."""
    reports: dict[str, list[Report]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        report = json.loads(line)
        reports.setdefault(report["nodeid"], []).append(report)
    return {node: found for node, found in reports.items() if found[-1]["when"] == "teardown"}


def _made_report(item: pytest.Item, outcome: str, reason: str) -> Report:
    path, line, name = item.location
    longrepr: Any = reason if outcome == "failed" else (path, line or 0, f"Skipped: {reason}")
    report = pytest.TestReport(item.nodeid, (path, line, name), {}, outcome, longrepr, "setup")
    return item.config.hook.pytest_report_to_serializable(config=item.config, report=report)


class _ReportWriter:
    """Writes each report at once, because a later test may end the process. Ends the process when all are written."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._path = config, path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(data)}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Spare Python's end, which frees what importing has made: it takes as long as a test."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            os._exit(exitstatus)
