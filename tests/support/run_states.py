"""A sweep whose runs are in every state."""

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps.plan import write_plan


def sweep_in_all_states(folder: Path) -> Path:
    """Write a sweep of one job per state. A job is named after its state while the sweep and `running` are locked.

    The job `before` failed in an earlier start of the sweep; the job `waiting` has no folder yet.
    """
    began, here = time.time() - 100, platform.node()
    summaries: dict[str, dict[str, Any] | None] = {
        "finished": {"status": "finished", "num_updates": 40, "total_updates": 40, "host": here,
                     "best": {"metric": "val/accuracy", "value": 0.9, "num_updates": 30}},
        "running": {"status": "running", "num_updates": 10, "total_updates": 40, "host": here},
        "killed": {"status": "running", "num_updates": 20, "total_updates": 40, "host": here},
        "running elsewhere": {"status": "running", "num_updates": 0, "total_updates": 40, "host": "node7"},
        "failed": {"status": "failed", "num_updates": 0,
                   "error": {"type": "NonFiniteError", "message": "loss became NaN"}},
        "before": {"status": "failed", "num_updates": 0, "error": {"type": "OSError", "message": "disk full"}},
        "refused": None,
        "waiting": None,
    }  # fmt: skip
    rows = [{"num_updates": n, "train/loss": 3 - n / 10, "perf/updates_per_second": 5.0} for n in (5, 16)]
    incomplete_line = '{"num_up'
    jobs = list[PlannedJob]()
    for name, summary in summaries.items():
        run = folder / name
        earlier = began + 50 if name == "before" else 0.0
        reason = "no GPU" if name == "refused" else None
        jobs.append(PlannedJob(name, [f"model={name}", "seed=0"], reason, earlier))
        if summary is not None:
            run.mkdir()
            (run / "config.yaml").write_text("{}")
            (run / "summary.json").write_text(json.dumps(summary))
            text = "".join(f"{json.dumps(row)}\n" for row in rows) + incomplete_line
            (run / "metrics.jsonl").write_text(text)
    # The clock was set back after the sweep had begun, so times alone do not tell what was recorded before.
    os.utime(folder / "before" / "summary.json", (began + 50, began + 50))
    os.utime(folder / "failed" / "summary.json", (began - 50, began - 50))
    write_plan(folder, SweepPlan(began, jobs))
    return folder
