"""The command that installs an extra is right for how the distribution was installed; the version has its commit."""

import json
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from hydrant import cli, installation
from hydrant.errors import ConfigError
from hydrant.installation import install_command, require_extra

WHEEL = "file:///tmp/hydrant_ml-9.9-py3-none-any.whl"
GIT: dict[str, Any] = {
    "url": "https://example.org/hydrant.git",
    "vcs_info": {"vcs": "git", "commit_id": "1a2b3c"},
}


@pytest.mark.parametrize(
    ("direct_url", "requirement"),
    [
        (None, "'hydrant-ml[onnx]'"),
        ({"url": WHEEL, "archive_info": {}}, f"'hydrant-ml[onnx] @ {WHEEL}'"),
        (GIT, "'hydrant-ml[onnx] @ git+https://example.org/hydrant.git@1a2b3c'"),
        ({"url": "file:///home/me/hydrant", "dir_info": {"editable": True}}, "-e '/home/me/hydrant[onnx]'"),
    ],
    ids=["index", "wheel", "git", "checkout"],
)
def test_an_extra_comes_from_where_the_distribution_came_from(
    direct_url: dict[str, Any] | None, requirement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "hydrant_ml-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hydrant-ml\nVersion: 9.9\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert metadata.version("hydrant-ml") == "9.9"
    assert re.sub("^(uv )?pip install ", "", install_command("onnx")) == requirement


def test_a_checkout_that_is_current_folder_is_a_dot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(installation, "_origin", lambda: {"url": f"file://{tmp_path}", "dir_info": {}})
    assert install_command("onnx").endswith("pip install -e '.[onnx]'")


def test_setuptools_can_still_be_imported() -> None:
    """Its import hook gives up its own distutils for the whole process as soon as somebody looks for the module pip."""
    code = "from hydrant.installation import install_command as c; c('onnx'); import setuptools"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_names_the_modules_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "install_command", "install {}".format)
    require_extra("onnx", ["json"], "--format", "onnx")
    with pytest.raises(ConfigError, match=r"^--format: onnx needs no_such_module: install onnx$"):
        require_extra("onnx", ["json", "no_such_module"], "--format", "onnx")


def test_the_version_and_the_commit_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"hydrant {metadata.version('hydrant-ml')}")
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert f"(commit {commit[:12]}" in printed
