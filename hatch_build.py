"""Build hook: put docs/ into wheels, record the commit, and compile the code of an editable installation.

Some machines forbid Python to write bytecode when it runs (PYTHONDONTWRITEBYTECODE). There, code that was not compiled
at installation is compiled again by every process.
"""

from __future__ import annotations

import compileall
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling (`[tool.hatch.build.hooks.custom]` in pyproject.toml)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add `COMMIT`; `version` is `editable` or `standard`."""
        root = Path(self.root)
        if version == "editable":
            compileall.compile_dir(root / "src", quiet=1)
            return
        if self.target_name == "wheel":
            pages = [page.relative_to(root).as_posix() for page in (root / "docs").rglob("*.md")]
            build_data["force_include"] |= {str(root / page): f"hydrant/{page}" for page in pages}
        commit = _commit(root)
        if commit is not None:
            self._folder = tempfile.TemporaryDirectory()  # lives until the build has copied the file
            file = Path(self._folder.name, "COMMIT")
            file.write_text(commit + "\n", encoding="utf-8")
            target = "COMMIT" if self.target_name == "sdist" else "hydrant/COMMIT"
            build_data["force_include"][str(file)] = target


def _commit(root: Path) -> str | None:
    """Return the commit that an sdist recorded, or that of the checkout; None without Git."""
    recorded = root / "COMMIT"
    if recorded.is_file():
        return recorded.read_text(encoding="utf-8").strip()
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
