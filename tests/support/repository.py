"""The folder of this repository, and what its packages export."""

import ast
import importlib
import inspect
from pathlib import Path

ROOT = Path(__file__).parents[2]


def exported(package: str) -> set[str]:
    """Return the names that the file of a package exports: `from module import name as name`."""
    nodes = ast.walk(ast.parse(inspect.getsource(importlib.import_module(package))))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names if alias.asname == alias.name}
