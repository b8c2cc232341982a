"""The power fails after any operation on the disk: no row and no checkpoint is lost that was reported to be there."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from attacks import Trials
from killing import complete_rows, differing
from power_loss import POLICIES, Disk, Operation, Recorder, Tree, write_tree
from processes import fork, wait_for_fork
from tiny_runs import tiny_job, train

from hydrant.errors import HydrantError
from hydrant.runs.folder import METRICS, RunFolder
from hydrant.runs.lock import LEASE
from hydrant.runs.record import History
from hydrant.training.checkpoint.folder import newest_undamaged, read_manifest

RUN = Path("outputs", "run")


def record(disk: Path, mode: str, operations: Path) -> int:
    """Train; return the exit status, and write what was done on the disk to a file."""
    recorder = Recorder(disk)
    status = train(tiny_job(disk / RUN, mode))
    operations.write_bytes(pickle.dumps(recorder.finish()))
    return status


@dataclass(frozen=True)
class Loss:
    """What a power failure leaves, and what was reported before."""

    when: str
    tree: Tree
    num_updates: int  # of the last checkpoint, in summary.json
    is_finished: bool


def losses(operations: list[Operation]) -> Iterator[Loss]:
    """Yield what a failure may leave after each operation, each state once."""
    disk, seen = Disk(operations), set[tuple[object, ...]]()
    for num, operation in enumerate(operations):
        disk.apply(operation)
        summary = disk.after_power_loss("everything").get(f"./{RUN}/summary.json")
        told = json.loads(summary) if isinstance(summary, bytes) and summary else {}
        reported = (told.get("num_updates", 0), told.get("status") == "finished")
        for policy in POLICIES:
            tree = disk.after_power_loss(policy)
            # With another content, the next start first waits for its owner.
            tree.pop(f"./{RUN}/{LEASE}", None)
            key = (*reported, frozenset(tree.items()))
            if key not in seen:
                seen.add(key)
                yield Loss(f"operation {num} ({operation.event}), {policy} kept", tree, *reported)


def lost(folder: Path, whole: Path, loss: Loss) -> list[str]:
    """Return what is lost of that which was reported."""
    try:
        newest = newest_undamaged(folder / "checkpoints")
        manifest = None if newest is None else read_manifest(newest)
        num_updates = 0 if manifest is None else manifest.num_updates
        rows = (
            [] if manifest is None else History(RunFolder(folder), num_updates, manifest.rows).read(METRICS)
        )
    except HydrantError as error:
        return [str(error)]
    expected = [row["num_updates"] for row in complete_rows(whole) if 0 < row["num_updates"] <= num_updates]
    found = [row["num_updates"] for row in rows if row["num_updates"]]
    messages = [] if num_updates >= loss.num_updates else [f"checkpoint {loss.num_updates} is lost"]
    messages += [] if found == expected else [f"rows {expected} are {found}"]
    if loss.is_finished:
        links = {name: (folder / "checkpoints" / name).resolve().name for name in ("last", "best")}
        wrong = [name for name, to in links.items() if to != (whole / "checkpoints" / name).resolve().name]
        messages += [f"the link {name} is wrong" for name in wrong]
    return messages


@pytest.mark.parametrize(
    "mode", ["save_async=true", pytest.param("save_async=false", marks=pytest.mark.slow)]
)
def test_a_power_failure_loses_nothing_that_was_reported(mode: str, trials: Trials, workdir: Path) -> None:
    disk, findings = workdir / "disk", list[str]()
    disk.mkdir()
    recorded = workdir / "operations"
    # A recorder observes until its end.
    assert wait_for_fork(fork(partial(record, disk, mode, recorded))) == 0
    operations: list[Operation] = pickle.loads(recorded.read_bytes())
    rarity = 1 if trials.share == 1 else 2  # a start takes half a second
    for num, loss in enumerate(trials.of([*losses(operations)][::rarity])):
        root = workdir / str(num)
        write_tree(loss.tree, root)
        found = lost(root / RUN, disk / RUN, loss)
        if train(tiny_job(root / RUN, mode)) != 0:
            found.append("the next start fails")
        found += [f"{name} differs after the next start" for name in differing(root / RUN, disk / RUN)]
        if found:
            findings.append(f"after {loss.when}: {', '.join(found)}")
    assert findings == []
