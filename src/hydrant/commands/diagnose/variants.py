"""The configs that a diagnosis compares: the given one, and variants that differ only in `compile`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydrant.config.check import check
from hydrant.config.compose import compose, uncompiled
from hydrant.errors import ConfigError

Config = Mapping[str, Any]

_TRIAL = {
    "mode": "default", "options": None, "fullgraph": False, "optimizer": False, "evaluation": False, "check": True,
    "max_recompiles": None, "max_graph_breaks": None, "on_failure": "fail", "cache_dir": None,
}  # fmt: skip
"""Settings to try a backend: only the task is compiled, its results are checked, and graph breaks are no errors."""

_MODES = ("default", "blocks", "max_autotune_no_cudagraphs")
_CUDA_MODES = ("reduce_overhead", "max_autotune")


@dataclass(frozen=True)
class Variants:
    """Configs that differ only in `compile`."""

    given: Config  # the config of the user
    eager: Config
    modes: Mapping[str, Config]  # by option of the config group

    @property
    def backend(self) -> str:
        return self.given["compile"]["backend"]

    def with_backend(self, backend: str) -> Config:
        """Return the given config with another backend and without settings that turn findings into errors."""
        return {**self.given, "compile": {**self.given["compile"], **_TRIAL, "backend": backend}}

    @property
    def checked(self) -> Config:
        """The given config with `compile.check` on and without settings that turn findings into errors."""
        mode = {key: self.given["compile"][key] for key in ("mode", "options")}
        return {**self.given, "compile": {**self.given["compile"], **_TRIAL, **mode}}

    @property
    def given_name(self) -> str:
        """The name of the mode that equals the given config, or `as given`."""
        equal = (name for name, config in self.modes.items() if config["compile"] == self.given["compile"])
        return next(equal, "as given")

    def timed(self) -> dict[str, Config]:
        """Return the configs to time: eager, every mode, and the given one if it is none of them."""
        configs = {"eager": self.eager, **self.modes, self.given_name: self.given}
        return {name: _unbounded(config) for name, config in configs.items()}


def make_variants(overrides: Sequence[str], *, on_cuda: bool) -> Variants:
    """Compose the variants. If the config is not compiled, the given one gets compile=default.

    Raises:
        ConfigError: the config is wrong.
    """
    others = [o for o in overrides if not o.lstrip("+~").startswith(("compile=", "compile."))]
    compile_overrides = [o for o in overrides if o not in others]
    if "compile=eager" in compile_overrides:
        raise ConfigError("compile", "compile=eager compiles nothing to diagnose", remedy="leave it out")
    is_eager = "backend" not in compose(others).compile and not any(
        o.startswith("compile=") for o in compile_overrides
    )
    given = check(compose([*others, *compile_overrides, *(["compile=default"] if is_eager else [])]))
    modes = [*_MODES, *(_CUDA_MODES if on_cuda else ())]
    return Variants(
        given=given,
        eager=uncompiled(given),
        modes={mode: check(compose([*others, f"compile={mode}"])) for mode in modes},
    )


def _unbounded(config: Config) -> Config:
    """Remove the limits and checks, so that configs with graph breaks are timed too."""
    if "backend" not in config["compile"]:
        return config
    unlimited = {"fullgraph": False, "check": False, "max_recompiles": None, "max_graph_breaks": None}
    return {**config, "compile": {**config["compile"], **unlimited}}
