"""The result of a run, as ranks and processes send it."""

import json
from pathlib import Path

import pytest
import torch

from hydrant.errors import CheckpointError, ConfigError
from hydrant.runs.folder import RunStatus
from hydrant.runs.job import RunResult, first_failure, report, report_part
from hydrant.training.distributed.world import World


@pytest.mark.parametrize(
    "result",
    [
        RunResult.finished(0.5),
        RunResult.failed("rank 1 was killed by SIGKILL"),
        RunResult.preempted(15, "stopped by SIGTERM"),
        RunResult.from_error(ConfigError("seed", "must be a number")),
    ],
    ids=lambda result: result.status.value,
)
def test_a_result_survives_json(result: RunResult) -> None:
    copy = RunResult(**json.loads(json.dumps(result.to_json())))
    assert copy == result
    assert isinstance(copy.status, RunStatus)


def test_an_error_decides_status_and_exit_status() -> None:
    refused = RunResult.from_error(ConfigError("seed", "must be a number"))
    assert (refused.status, refused.exit_status, refused.error_type) == ("refused", 2, "ConfigError")
    failed = RunResult.from_error(CheckpointError("damaged"), "rank 0: damaged")
    assert (failed.status, failed.exit_status, failed.message) == ("failed", 1, "rank 0: damaged")


READ = "[third_party/gloo/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:70: Connection reset by peer"
NETWORK = "NCCL error: remote process exited or there was a network error"


@pytest.mark.parametrize(("error", "num_ranks", "is_lost"), [
    (RuntimeError(READ), "2", True), (RuntimeError(READ), "1", False),
    (torch.distributed.DistBackendError(NETWORK), "2", True),
    (torch.distributed.DistBackendError("NCCL error: duplicate GPU"), "2", False),
    (RuntimeError(f"Caught OSError in DataLoader worker process 0: {NETWORK}"), "2", False),
    (ConnectionResetError("Connection reset by peer"), "2", False),
])  # fmt: skip
def test_only_a_lost_connection_says_that_another_rank_has_ended(
    error: Exception, num_ranks: str, is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", num_ranks)
    result = first_failure(error, tmp_path, World(0, 0, 1, torch.device("cpu")))
    assert result.error_type == ("RankDied" if is_lost else type(error).__name__)
    assert ("another rank has ended" if is_lost else str(error)) in result.message


def test_only_errors_are_reported_as_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(RunResult.finished()) == 0
    assert report(RunResult.preempted(2, "stopped by SIGINT")) == 130
    report_part(RunResult.failed("no\nmemory"), "job 3")
    assert capsys.readouterr().err == "stopped by SIGINT\njob 3: error: no memory\n"
