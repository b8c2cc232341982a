"""Every key of a tracker is known to say who receives the results, or not."""

from pathlib import Path

import pytest
import yaml
from repository import conf_files

from hydrant.installation import entry_points

HARMLESS = {
    "experiment", "finish_timeout", "flush_seconds", "group", "init_timeout", "job_type", "log_checkpoints",
    "machine_info", "mode", "name", "notes", "probe_timeout", "project", "save_code", "tags",
}  # fmt: skip
"""Keys that choose what is sent, when and under which name, but not to whom."""


@pytest.mark.parametrize("option", conf_files("tracker/*.yaml").values(), ids=lambda path: path.stem)
def test_a_key_is_a_receiver_or_harmless(option: Path) -> None:
    keys = {key for key in yaml.safe_load(option.read_text()) if not key.startswith("_")} - {"defaults"}
    unknown = keys - HARMLESS - entry_points("hydrant.receivers").keys()
    assert not unknown, "add them to hydrant.receivers, if they say who receives the results, or to HARMLESS"
