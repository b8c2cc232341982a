"""`sweep.json`, and the files of a user in the folder of a sweep."""

import time
from pathlib import Path

import pytest

from hydrant.errors import ConfigError
from hydrant.records import SweepPlan
from hydrant.runs.folder import REPLACED_BY_SWEEP, SWEEP_CONFIG, SWEEP_PLAN, SWEEP_TABLE
from hydrant.sweeps.plan import SweepFiles, write_plan
from hydrant.sweeps.sweep import RunningSweep


@pytest.mark.parametrize("name", REPLACED_BY_SWEEP)
def test_a_sweep_replaces_no_file_of_the_user(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    message = f"{name} is of no sweep, and this sweep would replace it; move it"
    with pytest.raises(ConfigError, match=message), RunningSweep(tmp_path).active({}):
        pass
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, '{"mine": 1}')]


def test_a_sweep_replaces_what_an_earlier_start_of_it_wrote(tmp_path: Path) -> None:
    SweepFiles(tmp_path).check_replaced()
    write_plan(tmp_path, SweepPlan(time.time(), []))
    (tmp_path / SWEEP_TABLE).touch()
    SweepFiles(tmp_path).check_replaced()
    (tmp_path / SWEEP_PLAN).write_text("{")  # damaged; the same command writes it again
    (tmp_path / SWEEP_CONFIG).touch()
    SweepFiles(tmp_path).check_replaced()
