"""What editors and readers of a config ask: its JSON Schema, and what each option and key means."""

from hydrant.commands.registry import Command

EXPLAIN = Command("explain", "print what each option and key means, and where its file is",
                  main=f"{__name__}.explain:main", runs_own_code=False)  # fmt: skip

LIST = Command("list", "list the config groups with their options",
               main=f"{__name__}.explain:list_groups", runs_own_code=False)  # fmt: skip

SCHEMA = Command("schema", "write JSON schemas by which editors complete and check YAML",
                 main=f"{__name__}.json_schema:main")  # fmt: skip
