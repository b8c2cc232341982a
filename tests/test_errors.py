"""Errors keep their fields between processes, and say where."""

from __future__ import annotations

import pickle

from hydrant.errors import ConfigError, NonFiniteError


def test_a_config_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("seed", "needs a whole number")))
    assert (str(error), error.key, error.exit_status) == ("seed: needs a whole number", "seed", 2)


def test_a_non_finite_value_of_one_update_names_that_update() -> None:
    assert "became NaN or infinite at update 20. " in str(NonFiniteError("a parameter", 20, 20))
    assert "became NaN or infinite between updates 10 and 20. " in str(NonFiniteError("train/loss", 10, 20))
