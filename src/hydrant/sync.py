"""`sync`: what runs have kept offline, sent to W&B. Brings in no torch."""

from __future__ import annotations

import glob
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from hydrant.config.arguments import Flags
from hydrant.errors import ConfigError
from hydrant.job import emit, relative, say
from hydrant.redaction import redacted, redacted_text
from hydrant.tables import aligned
from hydrant.trackers.wandb_access import Account, NoAccessError, obstacle
from hydrant.trackers.wandb_names import ID_FILE
from hydrant.trackers.wandb_sync import Upload, look, upload

_PROBE_SECONDS = 10.0
_ROOTS = ("outputs", "multirun")


def main(arguments: Sequence[str]) -> int:
    """Send offline runs; the exit status."""
    options, words = _read(arguments)
    folders = _folders(words)
    found = {folder: look(folder) for folder in folders}
    waiting = [folder for folder, state in found.items() if state.state == "waiting"]
    if waiting and not options.dry_run:
        account = _account()
        for folder, result in _upload_all(waiting, account, options):
            found[folder] = result
            _progress(f"{relative(folder)}: {_told(result)}")
    if options.json:
        told = {relative(f): {"state": r.state, "detail": r.detail} for f, r in found.items()}
        emit(json.dumps(redacted(told)))
    else:
        say(_table(found))
    return int(any(result.state == "failed" for result in found.values()))


def _read(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    parser = Flags("sync")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--json", action="store_true")
    options, words = parser.split(arguments)
    if options.jobs < 1:
        raise ConfigError("--jobs", f"needs 1 or more, not {options.jobs}")
    if not options.timeout > 0:
        raise ConfigError("--timeout", f"needs more than 0 seconds, not {options.timeout:g}")
    return options, words


def _folders(words: Sequence[str]) -> list[Path]:
    """The folders of runs with a W&B run that words name, each once.

    Raises:
        ConfigError: a word names nothing.
    """
    folders = dict[Path, None]()
    for word in words or [root for root in _ROOTS if Path(root).is_dir()]:
        paths = [Path(p) for p in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207  # takes absolute ones too
        if not paths:
            raise ConfigError("RUNS", f"{word!r} is no folder; give run folders, sweeps or globs of them")
        folders |= dict.fromkeys(run.resolve() for path in paths for run in _below(path))
    return list(folders)


def _below(path: Path) -> list[Path]:
    return sorted(file.parents[1] for file in path.rglob(str(ID_FILE)))


def _account() -> Account:
    """Whose runs they will be.

    Raises:
        ConfigError: nobody's, for want of a key or a server.
    """
    told = obstacle(_PROBE_SECONDS)
    if told is None:
        try:
            return Account.configured()
        except NoAccessError as error:
            told = str(error)
    remedy = "give one by `wandb login`, or as WANDB_API_KEY" if "API key" in told else "try again later"
    raise ConfigError("", f"nothing is sent: {told}; {remedy}")


def _upload_all(
    folders: Sequence[Path], account: Account, options: Namespace
) -> Iterator[tuple[Path, Upload]]:
    """Each folder with what became of it, as they are done."""
    with ThreadPoolExecutor(options.jobs, "sync") as threads:
        futures = {threads.submit(upload, folder, account, options.timeout): folder for folder in folders}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:  # Ctrl-C reaches those under way too
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _progress(text: str) -> None:
    print(redacted_text(text), file=sys.stderr, flush=True)


def _told(result: Upload) -> str:
    return f"{result.state} ({result.detail})" if result.detail else result.state


def _table(found: dict[Path, Upload]) -> str:
    """A line a run, and how many there are of each kind."""
    if not found:
        return "no W&B runs found"
    rows = [[relative(folder), result.state, result.detail] for folder, result in found.items()]
    counts = Counter(result.state for result in found.values())
    lines = aligned([["run", "state", ""], *rows], {0, 1, 2})
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*(line.rstrip() for line in lines), "", total])
