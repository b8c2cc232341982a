"""The command `hydrant watch`: its address, its port, how it ends, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import jsonschema
import pytest
from planted import write_run

from hydrant import cli
from hydrant.commands.answers import schemas
from hydrant.commands.watch.feed import Feed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "a", {"seed": 0}, 0.9)
    return folder


def test_the_command_serves_until_ctrl_c(runs: Path) -> None:
    """Two of them take two ports. Each prints its address first, and ends at once with the status of Ctrl-C."""
    call = [str(Path(sys.executable).with_name("hydrant")), "watch", str(runs), "--no-browser"]
    servers = [
        subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        lines = [server.stdout.readline() for server in servers if server.stdout is not None]
        urls = [line.removesuffix("  (Ctrl-C ends it)\n") for line in lines]
        assert all(re.fullmatch(r"http://127\.0\.0\.1:\d+/", url) for url in urls)
        assert len(set(urls)) == 2
        with urllib.request.urlopen(urls[0], timeout=60) as answer:
            assert b'data-events="events"' in answer.read()
    finally:
        for server in servers:
            server.send_signal(signal.SIGINT)
        ends = [server.communicate(timeout=60) for server in servers]
    assert [server.returncode for server in servers] == [130, 130]
    for _, errors in ends:
        assert errors.splitlines()[-1] == "stopped by SIGINT"
        assert "Traceback" not in errors


def ended(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(["watch", *words, "--no-browser"])
    return status, capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_served_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert ended(str(runs), "--port", port, capsys=capsys) == (
            2, f"error: --port: {port} cannot be used (Address already in use); give another port, or none"
        )  # fmt: skip
    for words, message in [
        ((), "FOLDER: give runs, sweeps or folders of them"),
        ((str(runs / "b"),), "FOLDER: '.*/b' is not a folder"),
        (("wandb:me/project",), "FOLDER: 'wandb:me/project' is not a folder"),
        ((str(runs), "--port", "70000"), "--port: needs a number from 0 to 65535, not 70000"),
        ((str(runs), "--port", "x"), "--port: invalid int value: 'x'"),
        ((str(runs), "--host", "192.0.2.1"), "--host: '192.0.2.1' is no address of this machine"),
        ((str(runs), "--host", "no such host"), "--host: 'no such host' is no address of this machine"),
        ((str(runs), "--host", ""), "--host: needs an address or a name of this machine, not ''"),
        ((str(runs), "--sigma", "1"), "--sigma: is the noise of a test against a target"),
        ((str(runs), "--hots", "a"), "hydrant watch has no flag --hots; did you mean '--host'"),
    ]:
        status, line = ended(*words, capsys=capsys)
        assert status == 2
        assert re.search(message, line), line


def test_the_answer_for_programs_is_the_address(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(feed: Feed) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Feed, "rest", stop)
    assert cli.main(["watch", str(runs), f"{runs}/no[n]e*", "--no-browser", "--json"]) == 130
    shown = capsys.readouterr()
    assert f"'{runs}/no[n]e*' matches nothing yet" in shown.err.replace("\n", " ")
    content = json.loads(shown.out)
    jsonschema.validate(content, schemas()["watch"])
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", content["url"])


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_another_host_comes_with_a_token(
    runs: Path, host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def stop(feed: Feed) -> None:
        address = capsys.readouterr().out.split()[0]
        asked.append(address)
        port = re.search(r":(\d+)/", address)[1]  # type: ignore[index]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/{address.rpartition('/')[2]}", timeout=60
        ) as answer:
            assert answer.status == 200
        raise KeyboardInterrupt

    monkeypatch.setattr(Feed, "rest", stop)
    assert cli.main(["watch", str(runs), "--no-browser", "--port", "0", "--host", host]) == 130
    assert re.fullmatch(r"http://[^/]+:\d+/\?token=[\w-]{32}", asked[0])


def test_a_browser_is_opened_where_there_is_a_display(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, waiting = list[str](), list[bool]()

    def stop(feed: Feed) -> None:
        import time

        end = time.monotonic() + 20
        while not opened and not waiting and time.monotonic() < end:
            time.sleep(0.01)
            waiting.extend("no browser" in line for line in capsys.readouterr().err.splitlines())
        raise KeyboardInterrupt

    monkeypatch.setattr(Feed, "rest", stop)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.main(["watch", str(runs), "--port", "0"]) == 130
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", opened[0])
    opened.clear()
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert cli.main(["watch", str(runs), "--port", "0"]) == 130
    assert opened == []
    assert any(waiting)
