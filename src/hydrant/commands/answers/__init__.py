"""JSON Schemas of what each command prints with `--json`, and of errors: one file each.

The tests check every answer that they get. docs/reference/json.md is made from the schemas by
`python -m hydrant.commands.answers.page`.
"""

import json
from pathlib import Path
from typing import Any

ERROR = "error"


def schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by command, and that of an error."""
    files = sorted(Path(__file__).parent.glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
