"""The interface to an Optuna pruner, which may end a run that is a trial of a study."""

from __future__ import annotations

from collections.abc import Mapping


class Pruning:
    """Decides after every evaluation whether the run ends.

    This one never does: for a run that is no trial, or one with several objectives, which Optuna cannot prune.
    """

    def ends(self, row: Mapping[str, float], num_evaluations: int) -> bool:
        """Report an evaluation, given as its row, and return whether the run ends. All ranks get the same answer."""
        return False
