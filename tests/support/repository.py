"""The folder of this repository, and its config files."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def conf_files(pattern: str = "**/*.yaml") -> dict[str, Path]:
    """Return the config files of the core and of its extensions, by their paths within `conf`."""
    folders = [ROOT / "conf", *ROOT.glob("src/hydrant/extensions/*/conf")]
    files = {path.relative_to(folder).as_posix(): path for folder in folders for path in folder.glob(pattern)}
    return dict(sorted(files.items()))


def options_of(group: str) -> list[str]:
    """Return the options of a config group, of the core and of its extensions."""
    return [path.stem for path in conf_files(f"{group}/*.yaml").values()]
