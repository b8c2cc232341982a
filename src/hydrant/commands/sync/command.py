"""`hydrant sync`: upload offline W&B runs. Does not import torch."""

import glob
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from hydrant.checks import near_folders
from hydrant.commands.sync.upload import inspect, upload
from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError
from hydrant.files.plain_values import Positive, PositiveInt, check_value
from hydrant.records.answers import Sync, UploadResult
from hydrant.runs.folder import ROOTS
from hydrant.terminal.console import notice, relative, tell
from hydrant.terminal.text import align_columns
from hydrant.trackers.wandb import ID_FILE
from hydrant.trackers.wandb_sdk import Account, NoAccessError, access_problem, sdk_session

_PROBE_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Upload offline runs. Return the exit status."""
    options, words = _parse(arguments)
    results = {folder: inspect(folder) for folder in _find_folders(words)}
    waiting = [folder for folder, result in results.items() if result.state == "waiting"]
    if waiting and not options.dry_run:
        account = _account()
        for folder, result in _upload_all(waiting, account, options):
            results[folder] = result
            notice(f"{relative(folder)}: {result.state}{f' ({result.detail})' if result.detail else ''}")
    tell(_table(results), Sync({relative(folder): result for folder, result in results.items()}))
    return int(any(result.state == "failed" for result in results.values()))


def _parse(arguments: Sequence[str]) -> tuple[Namespace, list[str]]:
    options, words = Flags("sync", jobs=4, timeout=3600.0, dry_run=False).split(arguments)
    check_value("--jobs", PositiveInt, options.jobs)
    check_value("--timeout", Positive, options.timeout)
    return options, words


def _find_folders(words: Sequence[str]) -> list[Path]:
    """Return the run folders with a W&B run in these folders or globs, each once.

    Raises:
        ConfigError: a word matches nothing.
    """
    folders = dict[Path, None]()
    for word in words or [root for root in ROOTS if Path(root).is_dir()]:
        paths = [Path(p) for p in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207  # Path.glob rejects absolute patterns
        if not paths:
            remedy = near_folders(Path(word)) or "give run folders, sweep folders or globs of them"
            raise ConfigError("RUNS", f"{word!r} is not a folder", remedy=remedy)
        for path in paths:
            runs = sorted(file.parents[1] for file in path.rglob(str(ID_FILE)))
            folders |= dict.fromkeys(run.resolve() for run in runs)
    return list(folders)


def _account() -> Account:
    """Return the account that receives the runs.

    Raises:
        ConfigError: there is no API key, or the server does not answer.
    """
    with sdk_session():
        problem = access_problem(_PROBE_SECONDS)
        if problem is None:
            try:
                return Account.configured()
            except NoAccessError as error:
                problem = str(error)
    remedy = "log in with `wandb login`, or set WANDB_API_KEY" if "API key" in problem else "try again later"
    raise ConfigError("", f"nothing was uploaded: {problem}", remedy=remedy)


def _upload_all(
    folders: Sequence[Path], account: Account, options: Namespace
) -> Iterator[tuple[Path, UploadResult]]:
    """Upload run folders in threads. Yield each folder with its result as soon as it is done."""
    with ThreadPoolExecutor(options.jobs, "sync") as threads:
        futures = {threads.submit(upload, folder, account, options.timeout): folder for folder in folders}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:  # Ctrl-C also reaches the uploads that are running
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _table(results: Mapping[Path, UploadResult]) -> str:
    """Return a table with one line per run, and the number of runs in each state."""
    if not results:
        return "no W&B runs found"
    rows = [[relative(folder), result.state, result.detail] for folder, result in results.items()]
    counts = Counter(result.state for result in results.values())
    lines = align_columns([["run", "state", ""], *rows], {0, 1, 2})
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*(line.rstrip() for line in lines), "", total])
