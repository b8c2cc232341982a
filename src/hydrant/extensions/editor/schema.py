"""`schema`: write JSON schemas of the YAML of conf folders, for editors, and of records, for programs."""

import json
from collections.abc import Sequence
from pathlib import Path

from hydrant.config.command_line import Flags, writing_to
from hydrant.extensions.editor.json_schema import json_schemas
from hydrant.files.atomic_write import replace_file
from hydrant.records import schema as records
from hydrant.terminal.console import relative, tell


def main(arguments: Sequence[str]) -> int:
    """Write a schema for each group into a folder and return the exit status."""
    options, _ = Flags("schema", out=".schemas").split(arguments)
    folder = Path(options.out)
    schemas = json_schemas() | {f"records/{name}": schema for name, schema in records.schemas().items()}
    for name, content in schemas.items():
        file = folder / f"{name}.json"
        with writing_to("--out", file):
            replace_file(file, json.dumps(content, indent=1) + "\n")
    name, files = relative(folder.resolve()), [f"{name}.json" for name in schemas]
    text = f"{len(files)} schemas in {name}. In a file of conf/model, this line names its schema:"
    line = f"  # yaml-language-server: $schema=../../{options.out}/model.json"
    tell(f"{text}\n{line}", {"folder": name, "files": files})
    return 0
