"""Errors keep their fields between processes."""

from __future__ import annotations

import pickle

from hydrant.errors import ConfigError


def test_a_config_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("seed", "needs a whole number")))
    assert (str(error), error.key, error.exit_status) == ("seed: needs a whole number", "seed", 2)
