"""A record is defined once: a new field of summary.json takes three edits, to be read, documented, written, shown."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from processes import printed
from repository import ROOT

EDITS = {
    "records.py": [
        ("        perf: median speed", "        joules: of all updates\n        perf: median speed"),
        (
            "    pruned: bool | None = None\n",
            "    pruned: bool | None = None\n    joules: float | None = None\n",
        ),
    ],
    "runs/reporter.py": [('        "data_files": ', '        "joules": 12.5,\n        "data_files": ')],
    "extensions/compare/sections.py": [('"graphs": (', '"joules": ("", "J"), "graphs": (')],
}
CODE = """
import json, sys
from pathlib import Path
import msgspec
from hydrant import cli
from hydrant.records import Summary
from docs.tables import with_tables
assert cli.main(["train", "name=run", "tracker=local", "model.hidden=[4]", "duration=2"]) == 0
assert cli.main(["compare", "outputs/run", "--details", "--json"]) == 0
assert cli.main(["compare", "outputs/run"]) == 0
print(with_tables("", Path("run-folder.md")))
summary = Path("outputs/run/summary.json")
written = json.loads(summary.read_text())
recorded = msgspec.to_builtins(msgspec.convert(written, Summary))  # without fields that the records lack
assert {key: recorded.get(key) for key in written} == written
summary.write_text(summary.read_text().replace("12.5", '"many"'))
assert cli.main(["status", "outputs/run"]) == 0
"""


@pytest.mark.slow
@pytest.mark.extension
def test_a_new_field_of_the_summary_that_compare_shows_takes_three_places(tmp_path: Path) -> None:
    assert len(EDITS) == 3
    package = tmp_path / "src" / "hydrant"
    shutil.copytree(ROOT / "src" / "hydrant", package)  # with what is compiled
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    for name, edits in EDITS.items():
        text = (package / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (package / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}"}
    done = printed(sys.executable, "-c", CODE, cwd=tmp_path, env=environment)
    [answer] = [json.loads(line) for line in done.splitlines() if line.startswith("{")]
    assert answer["runs"][0]["figures"]["joules"] == 12.5
    assert re.search(r"  J$", done, re.MULTILINE), "the title of a column"
    assert "| `joules` | of all updates |" in done
    assert "Expected `float | null`, got `str` - at `$.joules`" in done
