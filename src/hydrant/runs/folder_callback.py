"""A Hydra callback that notes which folders Hydra creates, because Hydra creates them before the config is checked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from hydrant.runs.folder import missing_folders


class FolderCallback(Callback):
    """Notes the folders of a run or a sweep (`hydra.callbacks` in conf/train.yaml).

    Hydra builds the callback itself, so the notes are on the class; `reset` clears them before each call of Hydra.
    """

    folder: ClassVar[Path | None] = None  # of the run or the sweep
    sweep_folders: ClassVar[list[Path]] = []
    new_folders: ClassVar[list[Path]] = []  # did not exist before, the innermost first
    has_begun: ClassVar[bool] = False

    @classmethod
    def reset(cls) -> None:
        cls.folder, cls.sweep_folders, cls.new_folders, cls.has_begun = None, [], [], False

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        with suppress(OmegaConfBaseException):  # Hydra raises the same error when it reads the folder
            FolderCallback._note(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        with suppress(OmegaConfBaseException):
            FolderCallback._note(Path(config.hydra.sweep.dir))
            FolderCallback.sweep_folders.append(Path(config.hydra.sweep.dir))

    @classmethod
    def _note(cls, folder: Path) -> None:
        cls.folder, cls.has_begun = folder, True
        cls.new_folders = missing_folders(folder)
