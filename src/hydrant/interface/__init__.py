"""`hydrant.load_run`: a run and its results, read from its folder. The arguments of calls, and tables by pandas."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from hydrant.config.groups import own_words
from hydrant.errors import ConfigError, check_known, nearest, shown
from hydrant.files.plain_values import check_value
from hydrant.installation import require_extra
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import RunFolder
from hydrant.runs.log_setup import preserve_loggers, process_settings
from hydrant.runs.record import read_metrics
from hydrant.terminal.console import relative
from hydrant.terminal.text import number

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn
    from torch.utils.data import Dataset

    from hydrant.data import Data
    from hydrant.runs.load import SavedRun
    from hydrant.tasks import Task
    from hydrant.training.trainer import Trainer

P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(call: Callable[P, R]) -> Callable[P, R]:
    """Let a call of the interface say what to write in place of arguments that it does not have."""
    names = [name for name in inspect.signature(call).parameters if name != "self"]
    title = call.__qualname__ if "." in call.__qualname__ else f"hydrant.{call.__name__}"

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in [name for name in kwargs if name not in names]:
            remedy = _remedy(name, kwargs[name], names)
            raise ConfigError(name, f"{title} has no such argument", remedy=remedy)
        return call(*args, **kwargs)

    return checked


def _remedy(name: str, value: Any, names: Sequence[str]) -> str:
    """Return what to write: another argument, a key of the config, or what the key of another framework is here."""
    if close := nearest(name, names):
        return f"did you mean {close[0]}=...?"
    if "config" not in names and "overrides" not in names:
        return f"it has {', '.join(names)}"
    is_plain = value is None or isinstance(value, (bool, int, float, str, list, tuple))
    text = getattr(value, "__name__", type(value).__name__)
    if is_plain:
        text = value if isinstance(value, str) else shown(value)
    if (meant := own_words(name, text)) is not None:
        return f"in the list of hydrant.compose, {meant}"
    return f'give it to the config: hydrant.compose(["{name}={text}"])'


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a DataFrame.

    Raises:
        ConfigError: pandas is not installed.
    """
    require_extra("pandas", ["pandas"], "pandas", "a table of results")
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows])


Weights = Literal["best", "last", "ema"]
"""The weights of a run: of its best checkpoint, of its newest one, or their average (`averaging=ema`) in the newest.

The best are averaged too if `best.metric` is one of the averaged weights, such as `val_ema/accuracy`.
"""

_CHECKPOINT = {"best": "best", "last": "last", "ema": "last"}


class Run:
    """A run, finished or not. Its properties read the folder at each access, so they show the progress of a run.

    Args:
        folder: the run folder.
        objects: what replaces config groups, by group.
        allow_targets: packages that the user trusts; they replace those in the config of the run.
    """

    def __init__(
        self, folder: Path, objects: Mapping[str, Any] | None = None, allow_targets: Sequence[str] = ()
    ) -> None:
        self.folder = folder.resolve()
        """The run folder."""
        self._objects, self._allow_targets = dict(objects or {}), list(allow_targets)

    def __repr__(self) -> str:
        run = RunFolder(self.folder)
        best = run.summary.get("best")
        shown = "" if best is None else f", best {best['metric']} {number(best['value'], 6)}"
        num_updates = run.summary.get("num_updates", 0)
        return f"Run({relative(self.folder)!r}, {run.state}, {num_updates} updates{shown})"

    @property
    def status(self) -> str:
        """`finished`, `running`, `preempted`, `failed`, `pruned`, `killed` or `not started`."""
        return RunFolder(self.folder).state

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: the last and the best metrics, speed, memory, environment."""
        return RunFolder(self.folder).recorded

    @property
    def config(self) -> dict[str, Any]:
        """The resolved config of the run."""
        return RunFolder(self.folder).config

    @property
    def metrics(self) -> pd.DataFrame:
        """The rows of metrics.jsonl: `num_updates`, `epoch`, `time` and a column for each metric.

        A metric that a row does not have, or that was not finite, is NaN.

        Raises:
            ConfigError: pandas is not installed.
        """
        table = data_frame(read_metrics(self.folder))
        return table.astype({key: float for key in table.columns if "/" in key})

    @property
    def pictures(self) -> dict[str, Path]:
        """The newest picture of each name, with `pictures=end` or `pictures=evaluation`; the schedules; the curves."""
        drawn = {png.parent.name: png for png in sorted((self.folder / run_folder.PICTURES).glob("*/*.png"))}
        return drawn | {png.stem: png for png in self.folder.glob("*.png")}

    @known_arguments
    def model(self, weights: Weights = "best", *, device: str | torch.device = "cpu") -> nn.Module:
        """Return the trained model in evaluation mode, not compiled, with the weights in float32, or float64 after
        `precision=fp64`.

        The data of the run are not read.

        Raises:
            ConfigError: the run has no such weights, or was trained with a model that must be passed again.
        """
        with self._opening(weights) as arguments:
            from hydrant.runs.load import open_model

            return open_model(**arguments).to(device)

    @known_arguments
    def evaluate(self, split: str = "val", *, weights: Weights = "last") -> dict[str, float]:
        """Return the losses and metrics on a split of the data, as `val/...`: the numbers of `hydrant evaluate`.

        Args:
            split: `val`, `test`, `train` (without augmentation), or the name of a further validation set.
            weights: see `Weights`.

        Raises:
            ConfigError: as `model`; the run was trained with data or a task that must be passed again; or there is
                no such split.
        """
        with self.saved(weights) as saved:
            from hydrant.runs.load import evaluate_saved

            return evaluate_saved(saved, saved.split(split, "split"))

    @contextlib.contextmanager
    def trainer(self) -> Generator[Trainer]:
        """Yield what the run trains with, on its device, as its newest checkpoint left it, for a loop of your own.

        Nothing is written into the run folder.

        Raises:
            ConfigError: as `evaluate`.
        """
        with self.saved("last", trains=True) as saved:
            from hydrant.training.checkpoint.storage import SavedCheckpoint
            from hydrant.training.prepare.micro_batch import scratch_trainer
            from hydrant.training.saved_run import restore, saved_state

            content = SavedCheckpoint(saved.checkpoint)
            with scratch_trainer(saved.plan, saved_state(content)) as trainer:
                restore(trainer, content)
                yield trainer

    @contextlib.contextmanager
    def saved(self, weights: str, *, trains: bool = False) -> Generator[SavedRun]:
        """Yield the plan of the run with these weights. What then changes in the process is restored."""
        with self._opening(weights) as arguments:
            from hydrant.runs.load import open_run

            yield open_run(overrides=(), trains=trains, **arguments)

    @contextlib.contextmanager
    def _opening(self, weights: str) -> Generator[dict[str, Any]]:
        """Provide the objects, and yield the arguments that open a checkpoint."""
        with process_settings():
            from hydrant.training.passed_objects import nodes_of, passing  # imports torch

        check_known("weights", "weights", weights, _CHECKPOINT)
        checkpoint = RunFolder(self.folder).checkpoints / _CHECKPOINT[weights]
        nodes_of(self._objects)  # checks their types
        with unchanged_process(), passing(self._objects):
            part = "ema" if weights == "ema" else None
            yield {"path": str(checkpoint), "weights": part, "allow_targets": self._allow_targets}


@known_arguments
def load_run(
    folder: str | Path,
    *,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    data: Data | tuple[Dataset[Any], Dataset[Any]] | None = None,
    task: Callable[[nn.Module], Task] | None = None,
    allow_targets: Sequence[str] = (),
) -> Run:
    """Return a run from its folder, such as outputs/lr_study or a job's folder in multirun/.

    Args:
        folder: the run folder.
        model: the object that the run was trained with in place of the config group; so are `data` and `task`.
        data: see `model`.
        task: see `model`.
        allow_targets: packages that you trust, if the config of the run names some: no others may run.

    Raises:
        ConfigError: the folder holds no run, or `allow_targets` is no list of texts.
    """
    if not run_folder.is_run_folder(Path(folder)):
        remedy = "give a run folder, such as outputs/lr_study"
        raise ConfigError("folder", f"{folder} holds no run", remedy=remedy)
    check_value("allow_targets", Sequence[str], allow_targets)
    return Run(Path(folder), passed_objects(model, data, task), allow_targets)


@contextlib.contextmanager
def unchanged_process() -> Generator[None]:
    """Restore arguments, variables, loggers, the global random generators and the global settings of torch."""
    from torch import cuda

    from hydrant.seeding import kept_generators
    from hydrant.training.precision import kept_settings

    devices = range(cuda.device_count()) if cuda.is_initialized() else []
    with process_settings(), preserve_loggers(), kept_generators([*devices]), kept_settings():
        yield


def passed_objects(model: Any, data: Any, task: Any) -> dict[str, Any]:
    """Return the objects that were given, by config group. A pair of data sets becomes a `Data`."""
    if isinstance(data, tuple):
        from hydrant.data import Data, dataset_source
        from hydrant.data.dataset import shapes

        train, val = map(dataset_source, data)
        data = Data(train, val, **shapes(data[0], None, None))
    objects = {"model": model, "data": data, "task": task}
    return {group: value for group, value in objects.items() if value is not None}
