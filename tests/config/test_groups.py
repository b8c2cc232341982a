"""The conf folders in which options are found."""

from __future__ import annotations

import pytest

from hydrant import cli


def test_a_missing_conf_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRANT_CONF", "/nowhere/conf")
    assert cli.main(["train", "--cfg", "job"]) == 2
    assert "HYDRANT_CONF: /nowhere/conf is not a folder" in capsys.readouterr().err
