"""The conf folders in which options are found."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hydrant import cli
from hydrant.config import groups
from hydrant.config.command_line import is_override


def test_a_missing_conf_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYDRANT_CONF", "/nowhere/conf")
    assert cli.main(["train", "--cfg", "job"]) == 2
    assert "HYDRANT_CONF: /nowhere/conf is not a folder" in capsys.readouterr().err


def test_an_option_of_a_group_within_a_group_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "encoder").mkdir(parents=True)
    (tmp_path / "model" / "encoder" / "small.yaml").touch()
    words = ["model/encoder=small", "+model/encoder@model.second=small"]
    assert not any(map(is_override, words))
    monkeypatch.setenv("HYDRANT_CONF", str(tmp_path))
    assert all(map(is_override, words))
    assert not is_override("multirun/study/model-encoder=small")


def test_the_options_of_a_group_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, files = groups.content_of, Counter[Path]()

    def count(file: Path) -> dict[str, Any]:
        files[file] += 1
        return read(file)

    monkeypatch.setattr(groups, "content_of", count)
    assert groups.options_with("optimizer", "betas")
    assert {*files.values()} == {1}
