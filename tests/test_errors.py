"""Errors keep their fields between processes, and say where."""

import pickle
from pathlib import Path

import pytest

from hydrant.errors import ConfigError, NonFiniteError, near_folders


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("seed=0", "; did you mean {}/seed-0_model-mlp?"),
        ("seed=1 model=cnn", "; did you mean {}/seed-1_model-cnn?"),
        (
            "seed-2_model-mlp",
            "; did you mean 'seed-0_model-mlp' or 'seed-1_model-cnn'? "
            "Folders in {}: seed-0_model-mlp, seed-1_model-cnn",
        ),
        ("other", ". Folders in {}: seed-0_model-mlp, seed-1_model-cnn"),
        ("no/other", ""),
    ],
)
def test_a_folder_that_may_be_meant_is_named(word: str, hint: str, tmp_path: Path) -> None:
    for name in (".commands", "seed-0_model-mlp", "seed-1_model-cnn"):
        (tmp_path / name).mkdir()
    (tmp_path / "other.csv").touch()
    assert near_folders(tmp_path / word) == hint.format(tmp_path)


def test_a_config_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("seed", "needs a whole number")))
    assert (str(error), error.key, error.exit_status) == ("seed: needs a whole number", "seed", 2)


def test_a_non_finite_value_of_one_update_names_that_update() -> None:
    assert "became NaN or infinite at update 20. " in str(NonFiniteError("a parameter", 20, 20))
    assert "became NaN or infinite between updates 10 and 20. " in str(NonFiniteError("train/loss", 10, 20))
