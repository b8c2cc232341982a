"""`Job`: everything that a process needs to execute one run, in plain types that are sent between processes.

How a run ended: `RunResult`, and the line on stderr that reports it. How trackers name it, and the record of
its config.
"""

import json
import os
import pickle
import re
import sys
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import msgspec
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import Container, DictConfig, OmegaConf, open_dict, read_write

from hydrant.config.check import check
from hydrant.config.flat import flatten, group_choices, is_neutral
from hydrant.config.groups import INTERVALS, REPETITIONS
from hydrant.errors import ConfigError, HydrantError, RankDied, first_line, location, log, typed_line
from hydrant.files.on_disk import replace_file
from hydrant.files.read_file import PlainLoader
from hydrant.files.redaction import redacted
from hydrant.records import Trial
from hydrant.runs.folder import CONFIG, HYDRA, HYDRA_CONFIG, HYDRA_OVERRIDES, HYDRA_SETTINGS, LOG, RunStatus
from hydrant.runs.log_setup import log_to
from hydrant.terminal.console import notice, relative, say_error
from hydrant.trackers import RunIdentity

if TYPE_CHECKING:
    from hydrant.training.distributed.world import World


@dataclass(frozen=True)
class Job:
    """One run to execute."""

    config: Mapping[str, Any]  # resolved and checked
    folder: Path  # the run folder
    choices: Mapping[str, str | None]  # {"optimizer": "adamw", ...}
    records: Mapping[str, str]  # the text of each of Hydra's files in .hydra/
    overrides: Sequence[str]  # as on the command line, without those of `hydra`
    sweep_folder: Path | None  # if the job belongs to a sweep
    trial: Trial | None = None  # if the job belongs to a search
    # A class by its path, and its arguments: listens to the run.
    listener: tuple[str, dict[str, Any]] | None = None
    call: str = ""  # the Python call that continues the run, if it is started from Python

    def to_json(self) -> dict[str, Any]:
        """Return the job as a JSON object, for `from_json`."""
        return msgspec.to_builtins(self, enc_hook=str)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        return msgspec.convert(fields, cls, dec_hook=lambda kind, value: kind(value))

    def same_command(self) -> str:
        """Return the words for a message that says how to continue in this run folder."""
        if self.call:
            return self.call
        if self.config["name"] is not None:
            return "the same command"
        in_sweep = self.sweep_folder is not None
        key, folder = ("hydra.sweep.dir", self.sweep_folder) if in_sweep else ("hydra.run.dir", self.folder)
        return f"the same command with {key}={relative(folder or self.folder)}"


class Place(NamedTuple):
    """Where a run is written. Finding it evaluates interpolations, which takes a tenth of composing a job."""

    folder: Path
    sweep: Path | None  # the folder of the sweep, if the run belongs to one


def place(composed: DictConfig, number: int | None = None, folder: str | Path | None = None) -> Place:
    """Set the folder of a run in its config, which Hydra has composed, and return its place.

    Args:
        composed: the config, with the node `hydra`.
        number: of the job, in a sweep.
        folder: of a run outside of a sweep; by default that of the config.
    """
    settings, sweep = composed.hydra, None
    with hydra_settings(settings), read_write(settings), open_dict(settings):
        if number is None:
            place_of_run = Path(folder or settings.run.dir)
        else:
            settings.job.id, settings.job.num = str(number), number
            sweep = Path(settings.runtime.cwd, settings.sweep.dir)
            place_of_run = sweep / settings.sweep.subdir
        settings.runtime.output_dir = os.path.abspath(place_of_run)  # noqa: PTH100  # a link stays
    return Place(Path(settings.runtime.output_dir), sweep)


def job_of(composed: DictConfig, placed: Place) -> Job:
    """Check a config that has its place, and return its job. Takes the node `hydra` out of the config.

    Raises:
        ConfigError: a key or a value is wrong.
    """
    settings = composed.hydra
    with hydra_settings(settings), read_write(composed), open_dict(composed):
        del composed["hydra"]
        return Job(
            config=check(composed),
            folder=placed.folder,
            choices=group_choices(settings.runtime.choices),
            records=records_of(composed, settings),
            overrides=list(settings.overrides.task),
            sweep_folder=placed.sweep,
        )


def sweep_folder(composed: DictConfig) -> Path:
    """Return the folder of a sweep, by its config."""
    with hydra_settings(composed.hydra):
        return Path(composed.hydra.sweep.dir)


class _Recorded:
    """The recorded `hydra` node of a job, read when code of the user asks for it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @cached_property
    def hydra(self) -> DictConfig:
        recorded: Any = yaml.load(self._job.records[HYDRA_SETTINGS], PlainLoader)
        recorded["hydra"]["mode"] = RunMode[recorded["hydra"]["mode"]]
        return OmegaConf.create({**self._job.config, **recorded}).hydra


def settings_in_run(job: Job) -> AbstractContextManager[None]:
    """Let `HydraConfig.get()` in users' code return the settings of a run, in any process that executes it."""
    return _hydra_config(_Recorded(job))


def hydra_settings(settings: Any) -> AbstractContextManager[None]:
    """Let `${hydra:...}` read this `hydra` node."""
    return _hydra_config(SimpleNamespace(hydra=settings))


@contextmanager
def _hydra_config(config: Any) -> Generator[None]:
    instance: Any = HydraConfig.instance()
    previous, instance.cfg = instance.cfg, config
    try:
        yield
    finally:
        instance.cfg = previous


def records_of(config: DictConfig, settings: DictConfig) -> dict[str, str]:
    """Return the text of each of Hydra's files in .hydra/, without secrets. `settings` is the `hydra` node.

    Raises:
        ConfigError: the working folder, or another path in the settings, is no text.
    """
    try:
        return {
            HYDRA_CONFIG: redacted_yaml(config),
            HYDRA_SETTINGS: redacted_yaml({"hydra": OmegaConf.to_container(settings, enum_to_str=True)}),
            HYDRA_OVERRIDES: redacted_yaml(settings.overrides.task),
        }
    except UnicodeEncodeError as error:
        message = f"{error.object!r} is not UTF-8, which the record of a run cannot hold"
        raise ConfigError("", message, remedy="rename it, if it is a folder") from error


def redacted_yaml(config: Container | Mapping[str, Any]) -> str:
    """Return a config as YAML with unresolved interpolations and without secrets, as `OmegaConf.to_yaml` writes it.

    That of a plain mapping takes a third of the time, because no config is made of it. The jobs of a sweep share the
    texts of most keys.
    """
    if isinstance(config, Container):
        config = cast("Mapping[str, Any]", OmegaConf.to_container(config, resolve=False, enum_to_str=True))
    public = redacted(config)
    if not isinstance(public, dict) or not public:
        return _yaml(pickle.dumps(public))
    parts = cast("dict[str, Any]", public)
    outer, inner = next(iter(parts.items()))
    if len(parts) > 1 or not isinstance(inner, dict) or not inner:
        return "".join(_yaml(pickle.dumps({key: value})) for key, value in parts.items())
    below = cast("dict[str, Any]", inner)  # of `hydra`, of which a job changes a few keys
    texts = [_yaml(pickle.dumps({outer: {key: value}})) for key, value in below.items()]
    return "".join([texts[0], *(text.partition("\n")[2] for text in texts[1:])])


@lru_cache(1000)
def _yaml(pickled: bytes) -> str:
    value = pickle.loads(pickled)
    text = _dump(value, _FastDumper)
    # libyaml escapes more characters in double quotes, and breaks lines there at other places.
    return text if text.isascii() and '"' not in text else _dump(value, _Dumper)


def _dump(value: Any, dumper: type[yaml.Dumper]) -> str:
    return yaml.dump(value, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=dumper)


@lru_cache(10_000)  # the jobs of a sweep have most texts in common
def _needs_quotes(text: str) -> bool:
    """Return whether YAML or OmegaConf reads a text as another type without quotes."""
    if text.lower() in _BOOLEANS and text in (text.lower(), text.upper(), text.capitalize()):
        return True
    for kind in (int, float):
        with suppress(ValueError):
            kind(text)
            return True
    return False


_BOOLEANS = ("y", "n", "yes", "no", "true", "false", "on", "off")


_TEXT = "tag:yaml.org,2002:str"
_FastBase: type[yaml.Dumper] = getattr(yaml, "CDumper", yaml.Dumper)


class _Dumper(yaml.Dumper):
    """Writes YAML as OmegaConf does."""


class _FastDumper(_FastBase):
    """Writes YAML by libyaml, if that is installed."""


for _dumper in (_Dumper, _FastDumper):
    _dumper.add_representer(str, lambda d, t: d.represent_scalar(_TEXT, t, "'" if _needs_quotes(t) else None))


_LOST_OF_GLOO = r"^\[\S*gloo/.*(Connection (closed|reset) by peer|Broken pipe)"
_LOST_OF_OTHERS = f"{_LOST_OF_GLOO}|remote process exited|Connection was likely closed"
"""Messages on a rank whose partner has ended: of gloo, and of errors of a type of torch.distributed."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended. Ranks send it as JSON: `RunResult(**fields)` reads what `to_json` returned."""

    status: RunStatus  # finished, failed, preempted or refused
    exit_status: int
    message: str = ""  # the last line on stderr; "" if there is nothing to report
    value: float | None = None  # the best value of the deciding metric, for sweepers that search
    error: Mapping[str, str] | None = None  # type and message, as in summary.json
    remedy: str = field(default="", compare=False)  # the end of the message; "" if it has none
    exception: BaseException | None = field(default=None, repr=False, compare=False)  # in this process only

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", RunStatus(self.status))  # a plain string in JSON

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "exception": None}  # one of a user's part may not be picklable

    def to_json(self) -> dict[str, Any]:
        """Return the result without its exception as a JSON object."""
        return asdict(replace(self, exception=None))

    def on_rank(self, rank: int) -> Self:
        """Return the result as the run reports it if it is another rank's."""
        error = self.error and {**self.error, "message": f"rank {rank}: {self.error['message']}"}
        return replace(self, message=f"rank {rank}: {self.message}", error=error)

    @property
    def error_type(self) -> str:
        return (self.error or {}).get("type", "")

    @classmethod
    def finished(cls, value: float | None = None) -> Self:
        return cls(RunStatus.FINISHED, 0, value=value)

    @classmethod
    def preempted(cls, signum: int, message: str) -> Self:
        """Return the result of a run that a signal stopped."""
        return cls(RunStatus.PREEMPTED, 128 + signum, message)

    @classmethod
    def failed(cls, message: str, error_type: str = "", remedy: str = "") -> Self:
        error = {"type": error_type, "message": message} if error_type else None
        return cls(RunStatus.FAILED, 1, message, error=error, remedy=remedy)

    @classmethod
    def from_error(cls, error: BaseException, message: str | None = None) -> Self:
        """Return the result of a run that an error ended; `message` replaces the error's own."""
        exit_status = getattr(error, "exit_status", 1)
        status = RunStatus.REFUSED if exit_status == ConfigError.exit_status else RunStatus.FAILED
        described = {"type": type(error).__name__, "message": first_line(error)}
        text = str(error) if message is None else message
        remedy = error.advice if isinstance(error, HydrantError) else ""
        return cls(status, exit_status, text, error=described, remedy=remedy, exception=error)


def unexpected_failure(error: BaseException, job: Job) -> RunResult:
    """Return the result for an error outside of training, e.g. in the log itself; log its traceback if possible."""
    message, file = f"{typed_line(error)} (at {location(error)})", job.folder / LOG
    with suppress(OSError), log_to(file):
        log.debug("the run could not be started, or ended", exc_info=error)
        message += f"; {file} has the traceback"
    return RunResult.from_error(_or_rank_died(error), message)


def first_failure(error: BaseException, folder: Path, world: "World") -> RunResult:
    """Return the result to report. Rank 0 reports that of the first that failed: it may only have lost that rank."""
    error = _or_rank_died(error)
    match error:
        case HydrantError():
            message = str(error)
        case OSError():  # the machine is at fault, and the log may be the file that cannot be written
            message = typed_line(error)
        case _:
            log_file = f"{relative(folder)}/{LOG}"
            message = f"{typed_line(error)} (at {location(error)}); {log_file} has the traceback"
    here = RunResult.from_error(error, message)
    rank, text = world.first_report(str(folder), json.dumps(here.to_json()))
    first = RunResult(**json.loads(text))
    is_own = world.rank or not rank or first.message == here.message or first.error is None
    return here if is_own else first.on_rank(rank)


def _or_rank_died(error: BaseException) -> BaseException:
    """Return an error, or `RankDied` if it says that another rank has ended."""
    pattern = _LOST_OF_OTHERS if type(error).__name__.startswith("Dist") else _LOST_OF_GLOO
    if os.environ.get("WORLD_SIZE", "1") == "1" or not re.search(pattern, str(error)):
        return error
    return RankDied("another rank has ended; the launcher, or the output of that rank, says why")


def report(result: RunResult) -> int:
    """Print on stderr what went wrong, if anything, and return the exit status."""
    if result.message:
        say_error(result.message, result.exit_status, getattr(result.exception, "key", ""), result.remedy)
    return result.exit_status


def report_part(result: RunResult, label: str) -> None:
    """Print on stderr what went wrong in a part of what this command does, such as a job of a sweep, which goes on."""
    if result.message:
        sys.stdout.flush()
        kind = "" if result.exit_status > 128 else "error: "
        notice(f"{label}: {kind}{' '.join(result.message.split())}")


_PARTS = ("data", "model", "optimizer", "scheduler", "task")
"""The config groups whose options name a run."""


def identify(job: Job) -> RunIdentity:
    """Return how trackers name and group a run, from its choices of config groups and its overrides.

    Runs that differ only in the seed, the fold, or in keys that do not affect the result, share a group.
    """
    choices = {group: choice for group, choice in job.choices.items() if choice is not None}
    parts = {group: choices.get(group) or _target_name(job, group) for group in _PARTS}
    subject = choices.get("experiment") or f"{parts['data']}-{parts['model']}"
    overrides = redacted(list(job.overrides))
    shown = {"experiment"} if "experiment" in choices else {"data", "model"}
    telling = [word for word in overrides if not _is_left_out(word, shown)]
    group = "/".join([subject, parts["optimizer"], parts["scheduler"], ",".join(sorted(telling))])
    claim = [] if job.config["claim"] is None else [f"claim: {job.config['claim']}"]
    best, is_named = job.config["best"], job.config["name"] is not None
    sweep = [job.sweep_folder.name] if job.sweep_folder is not None and is_named else []
    is_dated = not is_named and job.sweep_folder is None
    return RunIdentity(
        folder=job.folder.resolve(),
        name=f"{job.folder.parent.name}_{job.folder.name}" if is_dated else job.folder.name,
        group=group.rstrip("/"),
        job_type=parts["task"],
        tags=tuple(redacted(list(dict.fromkeys([*job.config["tags"], *sweep])))),
        notes=redacted(job.config["notes"] or "\n".join([*claim, " ".join(overrides)])),
        best=(best["metric"], best["mode"]),
        config=redacted({**flatten(job.config), **job.choices, "overrides": list(job.overrides)}),
    )


def _target_name(job: Job, group: str) -> str:
    """Return the name of the class of a part that is no option, as in `~model '+model={_target_: ...}'`."""
    node: Any = job.config.get(group)
    has_target = isinstance(node, Mapping) and "_target_" in node
    return str(node["_target_"]).rpartition(".")[2] if has_target else "none"


def _is_left_out(override: str, shown: Collection[str]) -> bool:
    """Return whether the group's name leaves out an override: it is in the name already, or affects no result."""
    key = override.lstrip("+~").partition("=")[0]
    return key in {*shown, *INTERVALS, "optimizer", "scheduler", *REPETITIONS} or is_neutral(key)


def write_records(job: Job) -> None:
    """Write Hydra's files into `.hydra/`, and the resolved config, without secrets. The folder is locked."""
    folder = job.folder / HYDRA
    folder.mkdir(exist_ok=True)
    for name, text in job.records.items():
        replace_file(folder / name, text)
    replace_file(job.folder / CONFIG, redacted_yaml(job.config))
