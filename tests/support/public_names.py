"""The names that a package, or a module, exports."""

from types import ModuleType


def public_names(package: ModuleType) -> set[str]:
    """Return the names of what the package or module, or a module of the package, defines."""
    values = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    home = f"{package.__name__}."
    return {name for name, value in values.items() if f"{getattr(value, '__module__', '')}.".startswith(home)}
