"""The plan of a run whose durations may be in seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hydrant.runs.resume import Start
from hydrant.terminal.console import show_activity
from hydrant.training.plan import Plan
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.update_timing import time_updates
from hydrant.training.train_state import saved_state

log = logging.getLogger("hydrant")


def prepare_timed(config: Mapping[str, Any], start: Start) -> Plan:
    """Prepare a run. If durations are in seconds, measure how long its updates take; all ranks call it.

    A run that continues keeps the times from its beginning, so that its horizon and its schedules stay the same.
    """
    saved = {} if start.checkpoint is None else saved_state(start.checkpoint).update_seconds
    known = {int(size): seconds for size, seconds in saved.items()}
    plan = prepare(config, update_seconds=known)
    if not (sizes := plan.clock.unmeasured_sizes):
        return plan
    show_activity("measuring how long an update takes")
    measured = time_updates(plan, sizes)
    for size, seconds in measured.items():
        log.info("an update of %d samples takes %.4g s, which durations in seconds count by", size, seconds)
    return prepare(config, update_seconds={**known, **measured})
