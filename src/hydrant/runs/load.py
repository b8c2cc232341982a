"""Load a run from its folder: its config and the model of one of its checkpoints."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from torch import nn

from hydrant.config import flat, groups
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.instantiate import instantiate
from hydrant.data.splits import Split, find_split
from hydrant.errors import ConfigError, check_known, log
from hydrant.runs.folder import RunFolder, choices_in, read_options, read_overrides
from hydrant.runs.resume import saved_config
from hydrant.safety.targets import import_targets
from hydrant.safety.trust import check_consent
from hydrant.terminal.console import relative
from hydrant.training.checkpoint.folder import BEST, LAST, find_checkpoint, run_folder
from hydrant.training.checkpoint.storage import SavedCheckpoint, weight_parts
from hydrant.training.checkpoint.weights import Weights, part_at
from hydrant.training.distributed.world import SINGLE_RANK
from hydrant.training.passed_objects import check_passed, is_missing
from hydrant.training.prepare.build import make_model, prepare
from hydrant.training.reports import evaluate
from hydrant.training.saved_run import restore_outside_model, saved_identity, saved_state
from hydrant.training.trainer import Plan

WEIGHTS = ("model", "ema", BEST, LAST)


@dataclass(frozen=True)
class SavedRun:
    """A run at one of its checkpoints: on the host, in evaluation mode."""

    folder: Path
    checkpoint: Path
    num_updates: int
    weights: str  # `model`, or `ema`: the average
    plan: Plan  # with the class names that the run learned
    _changed_classes: str = ""  # how the classes of the data now differ from these names

    @property
    def source(self) -> str:
        """In words for the user: the checkpoint, and that the weights are averaged."""
        return f"{relative(self.checkpoint)}{', averaged weights' if self.weights == 'ema' else ''}"

    def check_classes(self) -> None:
        """Check that the splits of the data still have the classes that the run learned.

        Raises:
            ConfigError: they have others.
        """
        if self._changed_classes:
            message = f"the data have other classes than the run learned: {self._changed_classes}"
            remedy = "rename them back (predictions of files do not need the splits)"
            raise ConfigError("data", message, remedy=remedy)

    def split(self, name: str, key: str) -> Split:
        """Return a split of the data by name. `key` is the option or argument by which the user named it.

        Raises:
            ConfigError: there is no such split, or it has other classes than the run learned.
        """
        self.check_classes()
        return find_split(self.plan.config, self.plan.splits, name, key)

    @contextlib.contextmanager
    def on_device(self) -> Generator[nn.Module]:
        """Yield the task on the device of the run, in its precision."""
        plan = self.plan
        plan.precision.activate()
        plan.world.set_device()
        with plan.world.process_group():
            yield plan.precision.convert_layers(plan.task).to(plan.world.device)


def open_run(
    path: str, overrides: Sequence[str], *, weights: str | None, allow_targets: Sequence[str] = (),
    trains: bool = False,
) -> SavedRun:  # fmt: skip
    """Load a run from its folder (the newest checkpoint) or from a checkpoint folder.

    Args:
        overrides: change keys of the saved config.
        weights: `model`, or `ema` for the averaged weights; `best` or `last` choose a checkpoint of a run folder:
            `best` its averaged weights if `best.metric` is one of them. None: those that the path names, see `part_at`.
        allow_targets: packages that the user trusts; they replace those in the saved config.
        trains: the run's optimizers and schedules are used; else their packages need not be installed.

    Raises:
        ConfigError: there is no such run, it has no such weights, or the overrides are wrong.
    """
    checkpoint, part, config = _open(path, overrides, weights, allow_targets, trains)
    check_passed(config, ("model", "data", "task"))
    content = SavedCheckpoint(checkpoint)
    identity = saved_identity(content)
    plan = prepare({**config, "parallel": SINGLE_RANK}, statistics=identity.statistics)
    Weights(checkpoint, part).load(plan.task.model, "model")
    restore_outside_model(plan.task, content)
    num_updates, changed = saved_state(content).num_updates, ""
    # The config may name them.
    if identity.class_names is not None and "class_names" not in plan.config["data"]:
        changed = identity.differences(plan.identity).get("class_names", "")
        plan.task.class_names = names = tuple(identity.class_names)
        plan = replace(plan, data=replace(plan.data, class_names=names))
    return SavedRun(run_folder(checkpoint), checkpoint, num_updates, part, plan, changed)


def open_model(path: str, *, weights: str | None, allow_targets: Sequence[str] = ()) -> nn.Module:
    """Load the model of a run in evaluation mode, without its data. The arguments are those of `open_run`.

    The task is built too, because it may add layers to the model. It is left out if it is an object that was not passed
    now; weights that need its layers then do not fit.

    Raises:
        ConfigError: as `open_run`; or the weights do not fit.
    """
    checkpoint, part, config = _open(path, (), weights, allow_targets, trains=False)
    check_passed(config, ("model",))
    import_targets(config)
    model = make_model(config)
    # Only a sample gives lazy layers their shapes.
    if any(map(nn.parameter.is_lazy, model.state_dict().values())):
        return open_run(path, (), weights=weights, allow_targets=allow_targets).plan.task.model.eval()
    if not is_missing(config, "task"):
        model = instantiate(config, "task", model).model
    if config["precision"].get("parameters") == "float64":
        model.double()
    Weights(checkpoint, part).load(model, "model")
    return model.eval()


def _open(
    path: str, overrides: Sequence[str], weights: str | None, allow_targets: Sequence[str], trains: bool
) -> tuple[Path, str, Mapping[str, Any]]:
    """Return a checkpoint, the part of it that holds the weights, and the checked config of its run.

    Raises:
        ConfigError: as `open_run`.
    """
    checkpoint, part = _find_weights(path, weights)
    if part not in weight_parts(checkpoint):
        raise ConfigError("--weights", f"{checkpoint} holds no averaged weights; the run needs averaging=ema")
    folder = run_folder(checkpoint)
    saved = saved_config(RunFolder(folder), "")
    if allow_targets:
        saved["allow_targets"] = list(allow_targets)
    else:
        check_consent(saved.get("allow_targets"), overrides)
    config = OmegaConf.create(saved)
    if overrides:
        _override(config, folder, overrides)
    config.update({} if trains else _no_training())
    return checkpoint, part, check(config)


def evaluate_saved(saved: SavedRun, split: Split) -> dict[str, float]:
    """Return the losses and metrics of a saved run on a split, as `val/...` or `test/...`; computed on its device."""
    plan = saved.plan
    with saved.on_device() as task:
        batches = split.source.batches(plan.spec, split.batch_size)
        values = evaluate(task, batches, plan.precision, plan.parallel, lambda task, batch: task(batch))
    return {f"{split.prefix}/{name}": value for name, value in values.items()}


def _find_weights(path: str, weights: str | None) -> tuple[Path, str]:
    """Return the checkpoint that a path and `weights` select, and the part of it that holds the weights.

    Raises:
        ConfigError: there is no such checkpoint, or no such name of weights.
    """
    if weights is not None:
        check_known("--weights", "weights", weights, WEIGHTS)
    place = RunFolder(Path(path)).checkpoints / BEST if weights == BEST else Path(path)
    checkpoint = find_checkpoint(place, "--weights" if weights in (BEST, LAST) else "")
    if weights is None or weights == BEST:
        return checkpoint, part_at(place)
    return checkpoint, "model" if weights == LAST else weights


def _override(config: DictConfig, folder: Path, overrides: Sequence[str]) -> None:
    """Apply overrides to the saved config of a run.

    The keys to change are those that the overrides name, and those that differ between the config composed with and
    without the overrides, e.g. all keys of a group whose option is replaced. All others keep their saved value.
    """
    options, unused = read_options(folder), _no_training()
    if ignored := [word for word in overrides if _group(word) in unused]:
        log.warning("not used, because nothing is trained: %s", " ".join(ignored))
    overrides = [word for word in overrides if word not in ignored]
    new, recorded = choices_in(overrides), [w for w in read_overrides(folder) if _group(w) not in unused]
    replaced = {key for key, value in new.items() if options.get(key) not in (None, value)}
    # Overrides of a replaced option no longer apply, because the new option has other keys.
    kept = [w for w in recorded if _group(w) not in replaced and not choices_in([w]).keys() & new.keys()]
    old, fresh = (compose(words, from_user=overrides) for words in (recorded, [*kept, *overrides]))
    with open_dict(config):
        for key in (*_changed_keys(old, fresh), *(k.replace("/", ".").partition("@")[0] for k in new)):
            value = OmegaConf.select(fresh, key, default=_ABSENT)
            if value is not _ABSENT:  # a group such as `experiment` is no key of the config
                OmegaConf.update(config, key, value, merge=False, force_add=True)


def _no_training() -> dict[str, Any]:
    """Return other parts for those that training alone uses, because the package of one may be no longer installed."""
    return {
        "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.1},
        "param_groups": {"no_decay": False, "layer_decay": None, "layer_decay_min_scale": 0.0, "patterns": {}},
        "scheduler": groups.option_fields("scheduler", "constant"),
        "schedules": {}, "optimizers": {}, "update_order": [],
    }  # fmt: skip


def _group(override: str) -> str:
    """Return the first name in the key of an override."""
    return next(iter(choices_in([override]))).partition("@")[0].partition(".")[0]


_ABSENT = object()


def _changed_keys(old: DictConfig, new: DictConfig) -> list[str]:
    """Return the keys in which two configs differ: a whole group if its option differs, else single keys."""
    old_values, new_values = (OmegaConf.to_container(config, resolve=False) for config in (old, new))
    assert isinstance(old_values, dict) and isinstance(new_values, dict)
    keys = list[str]()
    for name, value in new_values.items():
        before = old_values.get(name)
        match before, value:
            case dict(), dict() if before.get("_target_") == value.get("_target_"):
                values = flat.flatten(before)
                keys += [f"{name}.{k}" for k, item in flat.flatten(value).items() if values.get(k) != item]
            case _:
                keys += [str(name)] * (before != value)
    return keys
