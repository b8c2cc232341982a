"""The names that a package exports."""

from types import ModuleType


def public_names(package: ModuleType) -> set[str]:
    return {n for n, v in vars(package).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
