"""The server of `hydrant watch`: what it answers, to whom, and what it refuses. Everything in this process."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

import pytest
from planted import write_run
from reports import decoded, parts_of
from watching import Watched, watching

from hydrant.commands.watch import server as server_module

ODD = "a & b <i>é '\"%2e 日本 #?"
"""The name of a run whose characters mean something in a URL, in HTML or in a shell."""
PNG = b"\x89PNG of a run"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("watched")
    (root / "secret.txt").write_text("outside")
    (root / "secret.png").write_bytes(b"outside")
    sweep = root / "sweep"
    for n, name in enumerate(("plain", ODD)):
        run = write_run(sweep / name, {"seed": n}, 0.9 + n / 100)
        (run / "train.log").write_text(
            "".join(f"line {n}\n" for n in range(20_000)) + "WANDB token=abcdef0123\n"
        )
        (run / "pictures" / "samples").mkdir(parents=True)
        (run / "pictures" / "samples" / "update_00000100.png").write_bytes(PNG)
        (run / "pictures" / "samples" / "linked.png").symlink_to(root / "secret.png")
        (run / "pictures" / "samples" / "note.html").write_text("<script>alert(1)</script>")
        (run / "pictures" / "away").symlink_to(root)
    os.mkfifo(sweep / "plain" / "pictures" / "samples" / "pipe.png")
    return sweep


@pytest.fixture(scope="module")
def watched(sweep: Path) -> Iterator[Watched]:
    with watching(sweep) as served:
        yield served


def picture(run: str, file: str, **more: str) -> str:
    return f"/picture?{urlencode({'run': run, 'file': file, **more})}"


def test_the_page_has_the_data_of_the_runs(watched: Watched) -> None:
    status, content = watched.ask("/")
    assert status == 200
    parts = parts_of(content.decode())
    assert {run["name"] for run in parts["comparison"]["runs"]} == {"plain", ODD}
    assert "<i>é" not in content.decode(), "names are data only"
    pictures = parts["pictures"]["runs"]
    assert [[entry["file"] for entry in of_run] for of_run in pictures] == [["update_00000100.png"]] * 2


@pytest.mark.parametrize("run", ["plain", ODD])
def test_pictures_and_the_end_of_the_log_are_those_of_the_run(watched: Watched, run: str) -> None:
    assert watched.ask(picture(run, "samples/update_00000100.png")) == (200, PNG)
    status, log = watched.ask(f"/log?run={quote(run)}")
    assert status == 200
    lines = log.decode().splitlines()
    assert lines[-2] == "line 19999"
    assert lines[-1] == "WANDB token=***", "without secrets"
    assert lines[0].startswith("line "), "from the start of a line"
    assert len(log) <= 1 << 16


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "//etc/passwd", "/etc/passwd", "/a/../secret.txt",
        "/log?run=..", "/log?run=../sweep/plain", "/log?run=%2Fetc", "/log?run=plain%00", "/log", "/log?run=",
        picture("plain", "../../../secret.png"), picture("plain", "samples/../../train.log"),
        picture("plain", "samples/linked.png"), picture("plain", "away/secret.png"),
        picture("plain", "away/secret.txt"),
        picture("plain", "samples/note.html"), picture("plain", "samples/pipe.png"), picture("plain", ""),
        picture("..", "samples/update_00000100.png"), picture("/etc", "passwd"), picture("plain", "samples\0.png"),
    ],
)  # fmt: skip
def test_nothing_outside_of_the_pictures_and_the_log_is_served(watched: Watched, path: str) -> None:
    status, content = watched.ask(path)
    assert status == 404
    assert b"outside" not in content


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("127.0.0.1:99", 200), ("localhost:8460", 200), ("LOCALHOST", 200), ("[::1]:8460", 200),
        ("example.com", 403), ("127.0.0.1.example.com", 403), ("localhost.example.com:8460", 403), ("", 403),
        ("example.com@127.0.0.1.nip.io", 403), ("[", 400), ("127.0.0.1:abc", 200),
    ],
)  # fmt: skip
def test_only_a_host_of_this_machine_is_answered(watched: Watched, host: str, status: int) -> None:
    """A page elsewhere whose name is bound to 127.0.0.1 names its own host."""
    assert watched.ask("/", Host=host)[0] == status
    assert watched.ask("/log?run=plain", Host=host)[0] == status


def test_other_origins_read_nothing(watched: Watched) -> None:
    for headers in (
        {"Origin": "https://example.com"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{watched.port + 1}"},
        {"Origin": "http://localhost:8460", "Host": "localhost"},
        {"Origin": "https://localhost:8460", "Host": "localhost:8460"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ):
        assert watched.ask("/log?run=plain", **headers)[0] == 403
    visit = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert watched.ask("/", **visit)[0] == 200, "a link to the page"
    assert watched.ask("/log?run=plain", Origin="http://localhost:8460", Host="Localhost:8460")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert watched.ask("/", method)[0] == 501


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/log?run=plain", 200), ("HEAD", "/log?run=plain", 200), ("HEAD", "/events", 200),
        ("GET", "/nothing", 404), ("BREW", "/", 501), ("GET", f"/{'a' * 70_000}", 414),
    ],
)  # fmt: skip
def test_answers_forbid_frames_other_origins_and_guesses_of_types(
    watched: Watched, method: str, path: str, status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", watched.port, timeout=20)
    connection.request(method, path)
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    content = response.read()
    connection.close()
    assert response.status == status
    assert bool(content) == (method != "HEAD")
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["content-type"].startswith("text/event-stream" if path == "/events" else "text/plain")


def test_a_run_that_is_replaced_or_has_links_leads_nowhere(tmp_path: Path) -> None:
    """A folder that is moved, and a link or another folder with its name, are not the run that the page shows."""
    sweep, elsewhere = tmp_path / "sweep", tmp_path / "elsewhere"
    for folder, text in ((sweep / "run", b"inside"), (elsewhere, b"outside")):
        write_run(folder, {"seed": 0}, 0.9)
        (folder / "train.log").write_bytes(text)
        (folder / "pictures" / "x").mkdir(parents=True)
        (folder / "pictures" / "x" / "1.png").write_bytes(text)
    run = sweep / "run"
    with watching(sweep) as watched:
        asked = ("/log?run=run", picture("run", "x/1.png"))
        assert [watched.ask(path) for path in asked] == [(200, b"inside")] * 2
        for part in ("pictures", "pictures/x", "pictures/x/1.png", "train.log"):
            (run / part).rename(tmp_path / "away")
            (run / part).symlink_to(elsewhere / part)
            status, content = watched.ask(asked[part != "train.log"])
            assert (status, b"outside" in content) == (404, False), part
            (run / part).unlink()
            (tmp_path / "away").rename(run / part)
        run.rename(tmp_path / "moved")
        run.symlink_to(elsewhere)
        assert [watched.ask(path)[0] for path in asked] == [404, 404]
        run.unlink()
        elsewhere.rename(run)
        assert [watched.ask(path)[0] for path in asked] == [404, 404]
        sweep.rename(tmp_path / "other")
        assert watched.ask(asked[1])[0] == 404
        watched.feed.update()
        assert watched.feed.folders == {}


def test_a_run_without_a_log_has_an_empty_one(watched: Watched, sweep: Path) -> None:
    log = sweep / "plain" / "train.log"
    log.rename(log.with_suffix(".old"))
    assert watched.ask("/log?run=plain") == (200, b"")
    log.with_suffix(".old").rename(log)


def test_idle_connections_are_bounded(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MAX_CONNECTIONS", 3)
    with watching(sweep) as watched:
        address = ("127.0.0.1", watched.port)
        idle = [socket.create_connection(address, timeout=20) for _ in range(3)]
        with socket.create_connection(address, timeout=20) as refused:
            assert refused.recv(1) == b"", "it is closed at once"
        for client in idle:
            client.close()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with suppress(ConnectionError, http.client.HTTPException):
                assert watched.ask("/log?run=plain")[0] == 200
                break
            time.sleep(0.01)
        else:
            raise AssertionError("no room has become free")


def test_with_a_token_nothing_is_answered_without_it(sweep: Path) -> None:
    with watching(sweep, token="right", hosts=("train-box",)) as watched:
        for path in (
            "/",
            "/events",
            "/log?run=plain",
            picture("plain", "samples/update_00000100.png"),
            "/nothing",
        ):
            joint = "&" if "?" in path else "?"
            for given in (
                "",
                f"{joint}token=",
                f"{joint}token=wrong",
                f"{joint}token=right2",
                f"{joint}token=%C3%A9",
            ):
                assert watched.ask(path + given)[0] == 403
        assert watched.ask("/?token=right")[0] == 200
        assert watched.ask("/?token=wrong&token=right")[0] == 200
        assert watched.ask("/log?run=plain&token=right", Host="train-box:80")[0] == 200
        assert watched.ask("/?token=right", Host="example.com")[0] == 403


def next_comparison(file: BinaryIO) -> dict[str, Any]:
    """Return the next event with a comparison, with its parts decoded."""
    for line in file:
        event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {"parts": {}}
        if "comparison" in event["parts"]:
            return {
                "version": event["version"],
                **{name: decoded(part) for name, part in event["parts"].items()},
            }
    raise AssertionError("the stream has ended")


def stream(watched: Watched, since: str = "") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", watched.port), timeout=20)
    client.sendall(f"GET /events?since={since} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def test_an_open_page_gets_only_what_changes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", {"seed": 0}, 0.9, status="running")
    write_run(tmp_path / "b", {"seed": 1}, 0.91)
    with watching(tmp_path) as watched, stream(watched) as client, client.makefile("rb") as lines:
        first = next_comparison(lines)
        assert {"comparison", "curves", "details", "pictures", "progress"} <= set(first)
        watched.feed.update()
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"num_updates": 110, "val/accuracy": 0.5}\n{"num_updates": 120, "val/acc')
        watched.feed.update()
        second = next_comparison(lines)
        assert "details" not in second, "the config has not changed"
        assert second["curves"]["runs"]["val/accuracy"][0]["v"][-1] == 0.5
        with stream(watched, str(second["version"])) as other, other.makefile("rb") as news:
            (run / "summary.json").write_text(
                (run / "summary.json").read_text().replace('"running"', '"finished"')
            )
            watched.feed.update()
            third = next_comparison(news)
            assert next_comparison(lines)["version"] == third["version"]
        assert [run["state"] for run in third["comparison"]["runs"]] == ["finished", "finished"]
        with stream(watched, "another-99") as stranger, stranger.makefile("rb") as all_of_it:
            assert "details" in next_comparison(all_of_it), "versions of an earlier server count as none"


def test_clients_that_vanish_or_say_nothing_leave_the_server_as_it_was(
    watched: Watched, capfd: pytest.CaptureFixture[str]
) -> None:
    for request in (
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01\x02",
        b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ):
        client = socket.create_connection(("127.0.0.1", watched.port), timeout=20)
        client.sendall(request)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # the connection is reset
        client.close()
    assert watched.ask("/")[0] == 200
    assert capfd.readouterr() == ("", "")
