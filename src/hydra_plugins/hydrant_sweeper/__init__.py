"""Found by Hydra: the grid of `--multirun`, every job of which is checked before the first one starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

from hydrant.config import check
from hydrant.errors import ConfigError


@dataclass
class GridConfig:
    _target_: str = "hydra_plugins.hydrant_sweeper.GridSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


ConfigStore.instance().store(group="hydra/sweeper", name="grid", node=GridConfig, provider="hydrant")


class GridSweeper(BasicSweeper):
    """Hydra's own grid, which stops before it starts if any of its jobs cannot run."""

    def sweep(self, arguments: list[str]) -> Any:
        context = self.hydra_context
        assert context is not None and self.config is not None
        parser = OverridesParser.create(config_loader=context.config_loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        jobs = self.split_arguments(overrides, None)[0]
        faults = [fault for job in jobs if (fault := self._fault(job))]
        if faults:
            key, first = faults[0]
            others = f" ({len(faults)} of {len(jobs)} jobs cannot run)" if len(faults) > 1 else ""
            raise ConfigError(key, first + others)
        return super().sweep(arguments)

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Done for all batches in `sweep`."""

    def _fault(self, job: Sequence[str]) -> tuple[str, str] | None:
        assert self.hydra_context is not None and self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(job))
        plain = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
        with open_dict(plain):
            try:
                check(plain)
            except ConfigError as error:
                return error.key, f"{str(error).removeprefix(f'{error.key}: ')} [job: {' '.join(job)}]"
        return None
