"""What `hydrant watch` reads again, and what it says when folders change under it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from planted import write_run
from reports import decoded

from hydrant.commands.compare.question import Question
from hydrant.commands.compare.reader import RunReader
from hydrant.commands.compare.sources import read_runs
from hydrant.commands.watch.feed import Feed, have_changed
from hydrant.errors import RecordError
from hydrant.runs import folder as folder_module
from hydrant.runs import rows as rows_module
from hydrant.runs.rows import GrowingRows


def shown(feed: Feed) -> dict[str, Any]:
    """Return the comparison that pages show."""
    return decoded(feed.wait("", 0)[1]["comparison"])


def states(feed: Feed) -> dict[str, str]:
    return {run["name"]: run["state"] for run in shown(feed)["runs"]}


def test_only_changed_files_and_new_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path / f"{n}", {"seed": n}, 0.9, num_rows=50) for n in range(5)]
    configs, rows = list[Path](), list[bytes]()
    read_yaml, parse_row = folder_module.read_yaml, rows_module.parse_row
    monkeypatch.setattr(
        folder_module, "read_yaml", lambda path, kind: (configs.append(path), read_yaml(path, kind))[1]
    )
    monkeypatch.setattr(rows_module, "parse_row", lambda line: (rows.append(line), parse_row(line))[1])
    reader = RunReader()
    first = read_runs([str(tmp_path)], reader=reader)
    assert len(rows) == 250
    configs.clear(), rows.clear()
    second = read_runs([str(tmp_path)], reader=reader)
    assert configs == []
    assert rows == []
    assert not have_changed(second, first)
    with (runs[2] / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 200, "val/accuracy": 0.95}\n')
    third = read_runs([str(tmp_path)], reader=reader)
    assert rows == [b'{"num_updates": 200, "val/accuracy": 0.95}\n']
    assert [path for path in configs if path.name == "config.yaml"] == []
    assert have_changed(third, second)
    assert third[2].series["val/accuracy"].values[-1] == 0.95
    assert third[1].series is second[1].series


def test_growing_rows_equal_the_whole_file_whatever_happens_to_it(tmp_path: Path) -> None:
    path, rows = tmp_path / "metrics.jsonl", GrowingRows(tmp_path / "metrics.jsonl")

    def line(n: int, value: float = 1.0) -> str:
        return json.dumps({"num_updates": n, "train/loss": value}) + "\n"

    def updates() -> list[int]:
        found = rows.read()
        assert found == GrowingRows(path).read()
        return [row["num_updates"] for row in found]

    assert updates() == []
    path.write_text(line(1) + line(2) + line(3)[:9])
    assert updates() == [1, 2], "a half-written line is not read"
    with path.open("a") as file:
        file.write(line(3)[9:] + line(4))
    assert updates() == [1, 2, 3, 4]
    with path.open("r+") as file:  # a resume cuts rows in place and writes others, of the same length
        file.truncate(len(line(1) * 2))
        file.seek(0, os.SEEK_END)
        file.write(line(7) + line(8) + line(9))
    assert updates() == [1, 2, 7, 8, 9]
    (tmp_path / "other").write_text(line(5))
    (tmp_path / "other").replace(path)
    assert updates() == [5]
    path.write_text("")
    assert updates() == []
    path.write_text(line(1) + "damaged\n")
    with pytest.raises(RecordError, match="damaged"):
        rows.read()
    path.write_text(line(1) + line(6))
    assert updates() == [1, 6], "and it is read again when it is whole"
    path.unlink()
    assert updates() == []
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"cannot be read \(No such file"):
        rows.read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="a pipe"):
        rows.read()


def test_runs_may_appear_change_move_break_and_vanish(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    feed = Feed([str(sweep)], Question())
    feed.update()
    assert "no runs found" in shown(feed)["message"]
    run = write_run(sweep / "a", {"seed": 0}, 0.9, status="running", num_rows=3)
    (run / "metrics.jsonl").write_text("")
    feed.update()
    assert "none of the runs has logged a metric yet" in shown(feed)["message"]
    (run / "metrics.jsonl").write_text('{"num_updates": 1, "val/accuracy": 0.5}\n')
    feed.update()
    assert shown(feed)["message"] == ""
    assert states(feed) == {"a": "killed"}, "no process holds its lock"
    write_run(sweep / "b", {"seed": 1}, 0.8)
    feed.update()
    assert states(feed) == {"a": "killed", "b": "finished"}
    (sweep / "b").rename(sweep / "c")
    feed.update()
    assert states(feed) == {"a": "killed", "c": "finished"}
    assert feed.folders.keys() == {"a", "c"}
    (sweep / "c" / "summary.json").write_text("{")
    feed.update()
    assert states(feed) == {"a": "killed", "c": "damaged"}
    shutil.rmtree(sweep / "c")
    os.mkfifo(sweep / "c")
    feed.update()
    assert states(feed) == {"a": "killed"}, "a pipe is no run"
    (sweep / "a" / "metrics.jsonl").unlink()
    os.mkfifo(sweep / "a" / "metrics.jsonl")
    feed.update()
    assert "none of the runs" in shown(feed)["message"]
    (sweep / "loop").symlink_to(sweep)
    shutil.rmtree(sweep)
    feed.update()
    assert shown(feed)["message"]
    assert shown(feed)["runs"] == []


def test_what_a_run_without_rows_shows_is_followed(tmp_path: Path) -> None:
    """Its config, its error and its pictures may change while no row is written."""
    write_run(tmp_path / "a", {"seed": 0}, 0.9)
    run = write_run(tmp_path / "b", {"seed": 1}, 0.9, status="failed")
    (run / "metrics.jsonl").write_text("")
    feed = Feed([str(tmp_path)], Question())
    feed.update()
    version, _ = feed.wait("", 0)
    feed.update()
    assert feed.wait(version, 0) == (version, {}), "nothing has changed"
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("seed: 1", "seed: 7"))
    feed.update()
    assert {entry["labels"]["seed"] for entry in shown(feed)["runs"]} == {"0", "7"}
    (run / "pictures" / "samples").mkdir(parents=True)
    (run / "pictures" / "samples" / "1.png").write_bytes(b"")
    feed.update()
    assert [len(of_run) for of_run in decoded(feed.wait("", 0)[1]["pictures"])["runs"]] == [0, 1]
    (run / "schedule.json").write_text('{"updates": [0, 1], "values": {"optim/lr": [1, 0]}}')
    feed.update()
    assert decoded(feed.wait("", 0)[1]["curves"])["schedules"]["optim/lr"]
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "a")
    feed.update()
    assert feed.folders == {}


def test_the_first_change_is_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comparison takes long, because it imports much."""
    monkeypatch.setattr("hydrant.sweeps.sparing._REST", 1e9)
    write_run(tmp_path / "a", {"seed": 0}, 0.9)
    feed = Feed([str(tmp_path)], Question())
    feed.update()
    for name in "bc":
        write_run(tmp_path / name, {"seed": ord(name)}, 0.9)
        feed.update()
    assert states(feed).keys() == {"a", "b"}, "a comparison later, it rests"


def test_watching_writes_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {"seed": 0}, 0.9, status="running")

    def content() -> dict[str, tuple[int, bytes]]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = content()
    feed = Feed([str(tmp_path)], Question())
    feed.update()
    feed.update()
    assert content() == before
