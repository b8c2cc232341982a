"""The names that a package, or a module, exports."""

from types import ModuleType


def public_names(package: ModuleType) -> set[str]:
    values = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    if not hasattr(package, "__path__"):  # a module also has the names that it imports
        return {
            name for name, value in values.items() if getattr(value, "__module__", "") == package.__name__
        }
    return {name for name, value in values.items() if not isinstance(value, ModuleType)}
