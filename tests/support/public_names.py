"""The names that a package exports."""

from types import ModuleType


def public_names(package: ModuleType) -> set[str]:
    names = (name for name in dir(package) if not name.startswith("_"))
    return {name for name in names if not isinstance(getattr(package, name), ModuleType)}
