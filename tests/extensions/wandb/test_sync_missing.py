"""`hydrant sync` uploads the rows that a killed wandb-core had not written, from metrics.jsonl. With the real SDK."""

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wandb_rows import Make, kill_core, local_rows, wait_for_local_rows, without_sdk_keys
from wandb_server import WandbServer

from hydrant import cli
from hydrant.extensions.wandb.sync import completed, read_records, write_records
from hydrant.trackers import RunIdentity

Row = dict[str, float | None]


def row(num_updates: int, seconds: float, loss: float | None = 0.5) -> Row:
    return {"num_updates": num_updates, "epoch": num_updates / 10, "time": seconds, "train/loss": loss}


def write_metrics(folder: Path, rows: Sequence[Row]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def part_of(folder: Path, name: str, begin: int, rows: Sequence[Row], *, has_ended: bool = False) -> Path:
    """Write a part of a run as wandb-core does."""
    from wandb.proto import wandb_internal_pb2 as pb

    start, end = pb.Record(), pb.Record()
    start.run.start_time.seconds = begin
    end.exit.exit_code = 0
    history = [pb.Record() for _ in rows]
    for record, values in zip(history, rows, strict=True):
        for key, value in values.items():
            record.history.item.add(nested_key=[key], value_json=json.dumps(value))
    part = folder / "wandb" / name / "run-x.wandb"
    part.parent.mkdir(parents=True)
    write_records(part, [start, *history, *([end] if has_ended else [])])
    return part


def rows_in(records: Sequence[Any]) -> list[dict[str, Any]]:
    items = [record.history.item for record in records if record.HasField("history")]
    return without_sdk_keys([{i.nested_key[0]: json.loads(i.value_json) for i in row} for row in items])


def test_each_part_gets_the_rows_that_its_own_process_has_logged(tmp_path: Path) -> None:
    """The first process was killed after update 5, the second one continued from the checkpoint of update 4."""
    first, remade, second = [row(n, 100.5 + n) for n in range(1, 6)], row(5, 200.5), row(6, 201.5)
    killed = part_of(tmp_path, "offline-run-1-x", 100, first[:2])
    ended = part_of(tmp_path, "offline-run-2-x", 200, [remade, second], has_ended=True)
    without_time = {"num_updates": 3, "time": None}
    write_metrics(tmp_path, [*first[:4], without_time, remade, second])
    assert rows_in(completed(read_records(killed), killed, tmp_path)) == first[:4]
    assert completed(read_records(ended), ended, tmp_path) == read_records(ended)


def test_rows_of_an_online_part_are_not_added_to_an_offline_one(tmp_path: Path) -> None:
    rows = [row(1, 100.5), row(2, 200.5)]
    killed = part_of(tmp_path, "offline-run-1-x", 100, [])
    part_of(tmp_path, "run-2-x", 200, rows[1:])
    write_metrics(tmp_path, rows)
    assert rows_in(completed(read_records(killed), killed, tmp_path)) == rows[:1]


def test_added_rows_come_before_the_end_of_the_run(tmp_path: Path) -> None:
    """As where the tracker failed, while the run went on."""
    rows = [row(1, 100.5), row(2, 101.5)]
    part = part_of(tmp_path, "offline-run-1-x", 100, rows[:1], has_ended=True)
    write_metrics(tmp_path, rows)
    records = completed(read_records(part), part, tmp_path)
    assert rows_in(records) == rows
    assert records[-1].HasField("exit")


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_readable_metrics_nothing_is_added(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = part_of(tmp_path, "offline-run-1-x", 100, [row(1, 100.5)])
    if damage == "damaged":
        (tmp_path / "metrics.jsonl").write_text("junk\n")
    assert completed(read_records(part), part, tmp_path) == read_records(part)
    assert ("metrics.jsonl is damaged" in capsys.readouterr().err) == (damage == "damaged")


@pytest.mark.slow
@pytest.mark.usefixtures("reap")
def test_no_row_of_a_killed_run_is_missing_on_the_server(
    make_wandb: Make,
    tmp_path: Path,
    identity: RunIdentity,
    wandb_server: WandbServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, rows = tmp_path / "study", list[dict[str, Any]]()
    folder.mkdir()
    tracker = make_wandb(replace(identity, folder=folder), mode="offline")

    def log(losses: Sequence[float]) -> None:
        for loss in losses:
            rows.append(
                {"num_updates": len(rows), "epoch": len(rows) / 10, "time": time.time(), "train/loss": loss}
            )
            write_metrics(folder, rows)
            tracker.log(rows[-1])

    log([1.0, 0.25, 0.5])
    (part,) = folder.glob("wandb/offline-run-*")
    wait_for_local_rows(part, rows)
    log([0.75, 0.125, 0.625])
    kill_core(signal.SIGKILL)
    assert local_rows(part) == rows[:3], "wandb-core writes its file every second"
    tracker.finish(1, {})
    assert cli.main(["sync", "study"]) == 0
    assert "study: sent (6 rows)" in capsys.readouterr().err
    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows
    assert [row["_step"] for row in run.history] == list(range(6))
    assert (run.summary["num_updates"], run.summary["train/loss"]) == (5, {"last": 0.625, "min": 0.125})
    assert run.state == "failed"
