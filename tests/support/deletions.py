"""A tree without extensions, and what it still does. As a script, it tries the package that Python finds."""

import contextlib
import importlib
import io
import json
import os
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Collection
from importlib import metadata, util
from pathlib import Path
from typing import Any

from installed import uv
from processes import fork
from repository import ROOT

EXTENSIONS = sorted(path.parent.name for path in ROOT.glob("src/hydrant/extensions/*/__init__.py"))
_PROJECT = (ROOT / "pyproject.toml").read_text()
# Each extension that may import another one, where, and that one.
IMPORTED = re.findall(r'"hydrant\.extensions\.(\w+)(\S*) -> hydrant\.extensions\.(\w+)', _PROJECT)

HOOK = """
import os

class Kill:
    def after_update(self, trainer, num_updates):
        if num_updates == 7 and os.environ.get("KILL"):
            os.kill(os.getpid(), 9)
"""
TRAIN = ("optimizer=adamw", "scheduler=cosine", "tracker=local", "duration=12", "log_every=4", "save_every=5")
KILLED = ("train", *TRAIN, "+hooks.kill={_target_: killing_hook.Kill}", "allow_targets=[killing_hook]")


def tree_without(names: Collection[str], folder: Path) -> dict[str, str]:
    """Copy the repository without extensions; return the variables with which Python imports it from there."""
    for name in ("benchmarks", "conf", "docs", "examples", "scripts", "src", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    for path in ROOT.glob("[!.]*.*"):
        shutil.copy(path, folder)
    for name in names:
        shutil.rmtree(folder / "src" / "hydrant" / "extensions" / name)
        shutil.rmtree(folder / "tests" / "extensions" / name, ignore_errors=True)
    if names == EXTENSIONS:
        for place in ("extensions", "examples", "project", "support/extensions"):
            shutil.rmtree(folder / "tests" / place)
    if "wandb" in names:  # the default
        train = folder / "conf" / "train.yaml"
        train.write_text(train.read_text().replace("- tracker: wandb", "- tracker: local"))
    named = re.compile(rf'^\w+ = "hydrant\.extensions\.({"|".join(names)})\b.*\n', re.MULTILINE)
    (folder / "pyproject.toml").write_text(named.sub("", _PROJECT))
    installed = folder / "build" / "installed"
    words = ("--python", sys.executable, "--target", str(installed), "--editable", str(folder))
    uv("pip", "install", "--quiet", "--no-deps", *words)
    return {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{installed}"}


def import_all(package: str, *, but: str = "") -> None:
    """Import every module of a package, but those in a folder, and those that need an extension which is missing."""
    places = [(f"{name}{where.rstrip('.*')}", other) for name, where, other in IMPORTED]
    missing = tuple(place for place, other in places if util.find_spec(f"hydrant.extensions.{other}") is None)
    root = Path(str(importlib.import_module(package).__file__)).parent
    for file in root.rglob("*.py"):
        inner = file.relative_to(root).with_suffix("").parts
        module = ".".join((package, *inner)).removesuffix(".__init__")
        if inner[0] not in (but, "__main__") and not module.partition(".extensions.")[2].startswith(missing):
            importlib.import_module(module)


def hide(names: Collection[str]) -> None:
    """Hide extensions and their entry points from this process."""
    from hydrant import installation

    sys.modules.update(dict.fromkeys(f"hydrant.extensions.{name}" for name in names))
    named = re.compile(rf"hydrant\.extensions\.({'|'.join(names)})\b")
    points = (point for installed in metadata.distributions() for point in installed.entry_points)
    left = metadata.EntryPoints(point for point in points if not named.match(point.value))
    installation._installed = lambda: left
    installation.entry_points.cache_clear()
    installation.named_packages.cache_clear()


def call(*words: str, **variables: str) -> int:
    """Call a command in a fork; return the exit status, negative for a signal."""

    def run() -> int:
        os.environ.update(variables)
        os.dup2(2, 1)
        importlib.import_module("spawned").serve_forks_again()
        if words[0] != "train.py":
            return cli().main(words)
        sys.argv = list(words)
        runpy.run_path(str(Path(cli().__file__).parents[2] / words[0]), run_name="__main__")
        return 0

    return os.waitstatus_to_exitcode(os.waitpid(fork(run), 0)[1])


def cli() -> Any:
    return importlib.import_module("hydrant.cli")


def listings(*hiding: str) -> dict[str, Any]:
    """Return the commands and options that the command line lists, and the text of its help, from a fork."""

    def output(*words: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert cli().main(words) == 0, (words, hiding)
        return printed.getvalue()

    def write() -> None:
        if hiding:
            hide(hiding)
        output("train", *TRAIN, "--cfg", "job")
        helps = [output("help", command) for command in ("train", "preview", "status", "evaluate")]
        content = {
            "commands": list(importlib.import_module("hydrant.commands.registry").commands()),
            "options": importlib.import_module("hydrant.config.groups").group_options(),
            "texts": "".join([output("--help"), *helps]),
        }
        Path("listings.json").write_text(json.dumps(content))

    assert os.waitpid(fork(write), 0)[1] == 0, hiding
    return json.loads(Path("listings.json").read_text())


def try_core() -> dict[str, Any]:
    """Import every module, train as a user does, sweep, kill a run, resume it and look at it; return the `listings`."""
    import_all("hydrant")
    importlib.import_module("torch._dynamo")  # once, not in each fork that trains
    Path("killing_hook.py").write_text(HOOK)
    assert call("train.py", *TRAIN) == 0
    assert call("train", "--multirun", "name=four", "seed=0,1", "optimizer.lr=0.1,0.01", *TRAIN) == 0
    assert call("status", "multirun/four") == call("preview", *TRAIN) == 0
    assert call(*KILLED, "name=killed", KILL="1") == -signal.SIGKILL
    assert call(*KILLED, "name=killed") == call(*KILLED, "name=whole") == 0
    for file in ("checkpoints/last/model.safetensors", "checkpoints/last/training.safetensors"):
        assert Path("outputs/killed", file).read_bytes() == Path("outputs/whole", file).read_bytes()
    return listings()


def try_each() -> dict[str, dict[str, Any]]:
    """Import the core, which imports no extension, and each of these without the others; then hide each one alone.

    Returns:
        the `listings` without each.
    """
    import_all("hydrant", but="extensions")
    assert not [name for name in sys.modules if name.startswith("hydrant.extensions.")]
    for slow in ("torch._dynamo", "wandb"):  # once, not in each fork
        importlib.import_module(slow)
    for name in EXTENSIONS:

        def import_alone(name: str = name) -> None:
            hide({*EXTENSIONS} - {name, *(other for importer, _, other in IMPORTED if importer == name)})
            import_all(f"hydrant.extensions.{name}")

        assert os.waitpid(fork(import_alone), 0)[1] == 0, name
    return {name: listings(name) for name in EXTENSIONS}


if __name__ == "__main__":
    print(json.dumps({"core": try_core, "each": try_each}[sys.argv[1]]()))
