"""The user's consent to run code of other packages: what a config file requests, the command line must allow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from hydrant.errors import ConfigError, shown
from hydrant.safety.trust import could_be_trusted, trusted_projects, working_project

CONSENT_VARIABLE = "HYDRANT_ALLOW_TARGETS"
"""The environment variable that lists, separated by commas, the packages that config files may name."""

RECEIVERS = {"entity": "WANDB_ENTITY", "tracking_uri": "MLFLOW_TRACKING_URI"}
"""The keys of trackers that say who receives the results, with the variable in which the user may name the receiver.

Any other value of such a key must be on the command line."""


def check_consent(packages: object, words: Iterable[str]) -> None:
    """Refuse packages of `allow_targets` that only a config file names, because the user has to name them.

    `packages` is the value of `allow_targets`, `words` are the overrides of the command line.

    Raises:
        ConfigError: A package is neither on the command line nor in the variable HYDRANT_ALLOW_TARGETS, nor a package
            of the working folder that the user trusts.
    """
    if not packages or "allow_targets" in keys_set_by(words):
        return
    consented = [*consented_packages(), *working_project().packages]
    names = [str(package) for package in packages] if isinstance(packages, list) else [str(packages)]
    if refused := [name for name in names if name not in consented]:
        message = f"a config file requests to run code of {', '.join(map(shown, refused))}"
        value = ",".join(names)
        remedy = f"add 'allow_targets=[{value}]' to the command line, or set {CONSENT_VARIABLE}={value}"
        if all(map(could_be_trusted, refused)):
            remedy += ". If this folder is your project, trust it once: hydrant trust"
        elif roots := [root for root, own in trusted_projects().items() if set(refused) <= set(own)]:
            remedy += f", or run it in the folder of your trusted project: {' or '.join(roots)}"
        raise ConfigError("allow_targets", f"{message}. If you trust it, {remedy}")


def allows_own_code(words: Iterable[str]) -> bool:
    """Return whether code of the working folder may run: the user trusts this project, or allows packages.

    `words` are the overrides of the command line.

    Raises:
        ConfigError: the list of trusted projects is damaged.
    """
    return "allow_targets" in keys_set_by(words) or bool(consented_packages()) or working_project().is_trusted


def import_from_working_folder() -> None:
    """Let Python find modules in the working folder, after the standard library and the installed packages.

    So a file such as random.py replaces none of them.
    """
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)


def consented_packages() -> list[str]:
    """Return the packages that the environment variable allows."""
    return [package for package in os.environ.get(CONSENT_VARIABLE, "").split(",") if package]


def keys_set_by(words: Iterable[str]) -> set[str]:
    """Return the keys that the overrides of a command line set."""
    return {word.partition("=")[0].lstrip("+") for word in words}
