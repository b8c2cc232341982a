"""`schema`: write JSON schemas of the YAML of conf folders, for editors, and of records, for programs."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml

from hydrant.config.command_line import Flags, writing_to
from hydrant.editor.json_schema import json_schemas
from hydrant.errors import ConfigError, first_line
from hydrant.files.atomic_write import replace_file
from hydrant.records import schema as records
from hydrant.terminal.console import relative, tell


def main(arguments: Sequence[str]) -> int:
    """Write a schema for each group into a folder and return the exit status."""
    options, words = Flags("schema", out=".schemas").split(arguments)
    if words:
        raise ConfigError("", f"takes no overrides, but {words[0]} is one", remedy="name a folder with --out")
    folder = Path(options.out)
    try:
        schemas = json_schemas() | {f"records/{name}": schema for name, schema in records.schemas().items()}
    except yaml.YAMLError as error:
        raise ConfigError("", f"a file in the conf folder is no YAML ({first_line(error)})") from error
    for name, content in schemas.items():
        file = folder / f"{name}.json"
        with writing_to("--out", file):
            replace_file(file, json.dumps(content, indent=1) + "\n")
    name, files = relative(folder.resolve()), [f"{name}.json" for name in schemas]
    text = f"{len(files)} schemas in {name}. In a file of conf/model, this line names its schema:"
    line = f"  # yaml-language-server: $schema=../../{options.out}/model.json"
    tell(f"{text}\n{line}", {"folder": name, "files": files})
    return 0
