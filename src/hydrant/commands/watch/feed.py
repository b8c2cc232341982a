"""What open pages show: the data of the page, computed again when a run has changed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydrant.commands.compare.comparison import compare
from hydrant.commands.compare.page import encoded, page_data
from hydrant.commands.compare.page.pictures import listed_pictures
from hydrant.commands.compare.page.progress import progress
from hydrant.commands.compare.question import Question
from hydrant.commands.compare.reader import RunReader
from hydrant.commands.compare.run import Run
from hydrant.commands.compare.sources import read_runs
from hydrant.errors import HydrantError
from hydrant.files.known_folder import KnownFolder
from hydrant.sweeps.sparing import sparing

_REST_SECONDS = 1.0


class Feed:
    """The parts of the data by name, each with the number of its version. One thread updates them, and many wait."""

    def __init__(self, words: Sequence[str], question: Question) -> None:
        self._words, self._question, self._reader = words, question, RunReader()
        self._origin = secrets.token_hex(4)  # the versions of an earlier server are none of this one
        self._changed = threading.Condition()
        self._parts: dict[str, tuple[int, str]] = {}
        self._number, self._viewers, self._reading_seconds = 0, 0, 0.0
        self._read: tuple[Sequence[Run], list[str]] | None = None  # what the comparison is about
        self.has_ended = False
        self._shown: Sequence[Run] = ()  # by the page
        self.folders: Mapping[str, KnownFolder] = {}  # of the shown runs, by name
        self._update_comparison = sparing(self._compare)

    def update(self) -> None:
        """Read what has changed, and give the pages what follows from it. The comparison rests after a long one."""
        notes, began = list[str](), time.monotonic()
        try:
            runs = read_runs(self._words, self._question.varied, self._reader, notes.append)
        except HydrantError as error:  # no runs yet, or no longer
            self._show(())
            self._publish({"comparison": _without_results(str(error)), "progress": progress(())})
            self._read = None
            return
        except OSError:  # a folder was removed while it was read: the next time shows it
            return
        if self._read is None:  # this comparison imports much, so its time is not counted
            self._compare(runs, notes)
            return
        self._publish({"progress": progress(runs), "pictures": self._pictures()})
        self._reading_seconds = time.monotonic() - began
        if notes != self._read[1] or have_changed(runs, self._read[0]):
            self._update_comparison(runs, notes)

    def _compare(self, runs: Sequence[Run], notes: list[str]) -> None:
        try:
            comparison = compare(runs, self._question)
            data = page_data(comparison)
        except HydrantError as error:  # such as no metric yet
            self._show(())
            data: dict[str, Any] = {"comparison": _without_results(str(error))}
        else:
            self._show(comparison.runs)
            data["comparison"] |= {"message": "", "notes": notes}
        self._publish({**data, "progress": progress(runs), "pictures": self._pictures()})
        self._read = runs, notes

    def _show(self, runs: Sequence[Run]) -> None:
        """Let the server open the folders of these runs, and no others."""
        folders = dict[str, KnownFolder]()
        for run in runs:
            with suppress(OSError):  # a job that has not started, or a run that was just removed
                if run.folder is not None:
                    folders[run.name] = KnownFolder.found(run.folder)
        self._shown, self.folders = runs, folders

    def _pictures(self) -> dict[str, Any]:
        return {"runs": listed_pictures(self._shown, _picture_address), "left_out": 0}

    def _publish(self, parts: Mapping[str, Any]) -> None:
        with self._changed:
            texts = {name: encoded(part) for name, part in parts.items()}
            changed = {n: text for n, text in texts.items() if self._parts.get(n, (0, ""))[1] != text}
            if changed:
                self._number += 1
                self._parts |= {name: (self._number, text) for name, text in changed.items()}
                self._changed.notify_all()

    def wait(self, version: str, seconds: float) -> tuple[str, dict[str, str]]:
        """Return the newest version and the parts that are newer than a version, waiting for one if there is none."""
        origin, _, text = version.partition("-")
        since = int(text) if origin == self._origin and text.isdecimal() else 0
        with self._changed:
            self._changed.wait_for(lambda: self._number > since or self.has_ended, seconds)
            newer = {name: text for name, (number, text) in self._parts.items() if number > since}
            return f"{self._origin}-{self._number}", newer

    def join(self, change: int) -> int:
        """Count a page that is opened (1) or closed (-1). Return how many are open."""
        with self._changed:
            self._viewers += change
            self._changed.notify_all()
            return self._viewers

    def end(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()

    def rest(self) -> None:
        """Wait until the folders should be read again: while no page is open, and longer if reading is slow."""
        with self._changed:
            self._changed.wait_for(lambda: False, max(_REST_SECONDS, 9 * self._reading_seconds))
            self._changed.wait_for(lambda: self._viewers > 0)


def _without_results(message: str) -> dict[str, Any]:
    return {"message": message, "runs": [], "groups": []}


def have_changed(runs: Sequence[Run], known: Sequence[Run]) -> bool:
    """Return whether a run was added, removed, renamed or read again: else it has the same objects as before."""
    if len(runs) != len(known):
        return True
    return any(_has_changed(run, old) for run, old in zip(runs, known, strict=True))


def _has_changed(run: Run, old: Run) -> bool:
    pairs = [(getattr(run, name), getattr(old, name)) for name in ("series", "schedules")]
    if any(new is not was and (new or was) for new, was in pairs):  # arrays, which are not compared
        return True
    plain = ("name", "state", "error", "summary", "config", "overrides")
    return any(getattr(run, name) != getattr(old, name) for name in plain)


def _picture_address(run: Run, file: str, path: Path) -> Any:
    return {"run": run.name, "file": file, "changed": str(path.stat().st_mtime_ns)}


def message_of(version: str, parts: Mapping[str, str]) -> bytes:
    """Return the server-sent event with parts of the data."""
    return f"data: {json.dumps({'version': version, 'parts': parts})}\n\n".encode()
