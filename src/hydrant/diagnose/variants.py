"""The configs that a diagnosis looks at: the one that was given, and what differs from it in `compile` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.config import check, compose, uncompiled
from hydrant.errors import ConfigError

Config = Mapping[str, Any]

_PLAIN = {
    "mode": "default", "options": None, "fullgraph": False, "optimizer": False, "evaluation": False, "check": True,
    "max_recompiles": None, "max_graph_breaks": None, "on_failure": "fail", "cache_dir": None,
}  # fmt: skip
"""Settings with which a backend is tried: what breaks the graph does not end it."""

_MODES = ("default", "blocks", "max_autotune_no_cudagraphs")
_CUDA_MODES = ("reduce_overhead", "max_autotune")


@dataclass(frozen=True)
class Variants:
    """Configs that differ in `compile`."""

    own: Config  # as it was given
    eager: Config
    modes: Mapping[str, Config]  # by option of the group

    @property
    def backend(self) -> str:
        return self.own["compile"]["backend"]

    def tried_with(self, backend: str) -> Config:
        """The own config with another backend and nothing else that could fail."""
        return {**self.own, "compile": {**self.own["compile"], **_PLAIN, "backend": backend}}

    @property
    def checked(self) -> Config:
        """The own config, compared with eager whatever it says."""
        kept = {key: self.own["compile"][key] for key in ("mode", "options")}
        return {**self.own, "compile": {**self.own["compile"], **_PLAIN, **kept}}

    @property
    def own_name(self) -> str:
        """The mode that the own config is, or `as given`."""
        alike = (name for name, config in self.modes.items() if config["compile"] == self.own["compile"])
        return next(alike, "as given")

    def timed(self) -> dict[str, Config]:
        """The configs to measure beside eager: every mode, and the own one where it is none of them."""
        named = {"eager": self.eager, **self.modes, self.own_name: self.own}
        return {name: _unbounded(config) for name, config in named.items()}


def variants(overrides: Sequence[str], *, on_cuda: bool) -> Variants:
    """Compose them. Where the config is not compiled, the one to look at is that with compile=default.

    Raises:
        ConfigError: the config is wrong.
    """
    others = [o for o in overrides if not o.lstrip("+~").startswith(("compile=", "compile."))]
    asked = [o for o in overrides if o not in others]
    if "compile=eager" in asked:
        raise ConfigError("compile", "compile=eager compiles nothing to look at; leave it out")
    is_eager = "backend" not in compose(others).compile and not any(o.startswith("compile=") for o in asked)
    own = check(compose([*others, *asked, *(["compile=default"] if is_eager else [])]))
    modes = [*_MODES, *(_CUDA_MODES if on_cuda else ())]
    return Variants(
        own=own,
        eager=uncompiled(own),
        modes={mode: check(compose([*others, f"compile={mode}"])) for mode in modes},
    )


def _unbounded(config: Config) -> Config:
    """Broken graphs are measured too."""
    if "backend" not in config["compile"]:
        return config
    free = {"fullgraph": False, "check": False, "max_recompiles": None, "max_graph_breaks": None}
    return {**config, "compile": {**config["compile"], **free}}
