"""Every exception of Hydrant.

HydrantError                 anything a user can cause or must know; its message is for them
├── ConfigError              the config or the command line is wrong; nothing was started      (exit 2)
├── DataError                a sample or a file of the data set cannot be read                 (exit 1)
├── OutOfMemory              the device's memory, or the machine's, does not hold what is asked for (exit 1)
├── CheckpointError          a checkpoint is missing, damaged or of another run                (exit 1)
├── RecordError              a file of a run folder is damaged                                 (exit 1)
├── NonFiniteError           the loss or a gradient became NaN or infinite                     (exit 1)
├── CompileError             a task cannot be compiled, or is compiled too often               (exit 1)
│   └── CompileMismatch      compiled, it computes something else                              (exit 1)
├── ExportError              an exported model does not give the trained model's outputs       (exit 1)
├── RankHung                 a rank stands still, and so do those that wait for it             (exit 1)
├── JobFailed                a job of a sweep failed; raised in the sweep's process            (exit 1)
└── Interrupted              a signal asked the run to stop; its state is saved                (exit 130, 143)
"""

from __future__ import annotations

import difflib
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydrant.signals import signal_name


class HydrantError(Exception):
    """Base of every error whose message is written for the user."""

    exit_status = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), self.args, self.__dict__)  # it travels between processes


def _remade(kind: type[HydrantError], arguments: tuple[Any, ...], fields: dict[str, Any]) -> HydrantError:
    """An error from what it holds: how it was made would need other arguments."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class ConfigError(HydrantError):
    """The configuration is wrong. `key` is the config key to change, `""` if there is no single one."""

    exit_status = 2

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}" if key else message)
        self.key = key
        self.reason = message


class DataError(HydrantError):
    """A sample or a file of the data set cannot be read."""


class OutOfMemory(HydrantError):
    """The memory of the device, or of the machine, does not hold what is asked for."""


class CheckpointError(HydrantError):
    """A checkpoint is missing, damaged or of another run."""


class RecordError(HydrantError):
    """A file of a run folder is damaged."""


class NonFiniteError(HydrantError):
    """The loss or a gradient became NaN or infinite between two log points."""

    def __init__(self, metric: str, first_update: int, last_update: int, more: str = "") -> None:
        super().__init__(
            f"{metric} became NaN or infinite between updates {first_update} and {last_update}{more}. "
            "Lower optimizer.lr, lengthen scheduler.warmup, set max_grad_norm, or use precision=fp32."
        )

    @classmethod
    def after_skips(cls, num_updates: int, max_skipped: int, has_overflown: bool) -> NonFiniteError:
        """More than `max_skipped` in a row were skipped: tries of one update if it overflowed, else updates."""
        first = num_updates if has_overflown else num_updates - max_skipped
        name = "a scaled gradient" if has_overflown else "the loss or a gradient"
        return cls(name, first, num_updates + 1, f"; more in a row than max_skipped={max_skipped}")


class CompileError(HydrantError):
    """A task cannot be compiled, or is compiled more often than it may be."""


class CompileMismatch(CompileError):
    """A compiled task computes something else than the eager one."""


class ExportError(HydrantError):
    """An exported model does not give the trained model's outputs, or the format cannot hold it."""


class RankHung(HydrantError):
    """A rank stands still, and so do those that wait for it."""


class JobFailed(HydrantError):
    """A job of a sweep failed. Holds one string only, so that it travels between processes."""


class Interrupted(HydrantError):
    """A signal asked the run to stop; its state was saved at the end of the update."""

    def __init__(self, signum: int, num_updates: int) -> None:
        super().__init__(f"stopped by {signal_name(signum)} after update {num_updates}")
        self.exit_status = 128 + signum


def first_line(error: BaseException) -> str:
    """What an error says first, without its full stop; its type if it says nothing.

    >>> first_line(ValueError("no such file\\nin any folder")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def typed_line(error: BaseException) -> str:
    """The type of an error and what it says first.

    >>> typed_line(ValueError("negative")), typed_line(ValueError())
    ('ValueError: negative', 'ValueError')
    """
    line, name = first_line(error), type(error).__name__
    return line if line == name else f"{name}: {line}"


def location(error: BaseException) -> str:
    """Where an error was raised: the file and line of the innermost code that is in no installed package."""
    file, line = innermost(
        (frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)
    )
    return f"{Path(file).name}:{line}"


_LIBRARIES = ("site-packages", "dist-packages", "<", sysconfig.get_path("stdlib"))
_PACKAGE = str(Path(__file__).parent)


def innermost(frames: Iterable[tuple[str, int | None]]) -> tuple[str, int | None]:
    """The file and line of a stack, outermost first, that its reader can change: his own, else ours, else any."""
    stack = list(frames)
    ours = [frame for frame in stack if frame[0].startswith(_PACKAGE)]
    others = [f for f in stack if f not in ours and not any(part in f[0] for part in _LIBRARIES)]
    return (others or ours or stack or [("unknown", None)])[-1]


def nearest(name: str, options: Iterable[str], limit: int = 3) -> list[str]:
    """The options most like `name`, best first; neither case nor `-` or `_` count.

    >>> nearest("AdamW", ["adamw", "adam", "sgd"])
    ['adamw', 'adam']
    """
    plain = {_plain(option): option for option in options}
    close = difflib.get_close_matches(_plain(name), list(plain), n=limit, cutoff=0.6)
    return [plain[option] for option in close]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def suggestion(name: str, options: Iterable[str], noun: str = "Options") -> str:
    """What to append to an error about an unknown name: the nearest, and all if they are few.

    >>> suggestion("rellu", ["relu", "tanh"])
    "; did you mean 'relu'? Options: relu, tanh"
    """
    options = sorted(set(options))
    close = nearest(name, options)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "."
    if not options:
        return hint.removesuffix(".")
    return (
        f"{hint} {noun}: {', '.join(options)}"
        if len(options) <= 50
        else f"{hint} There are {len(options)} {noun.lower()}"
    )


def unknown_name(key: str, kind: str, name: str, options: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the options: lists the nearest, and all if they are few.

    >>> print(unknown_name("model.name", "activation", "rellu", ["relu", "tanh"]))
    model.name: unknown activation 'rellu'; did you mean 'relu'? Options: relu, tanh
    """
    return ConfigError(key, f"unknown {kind} {name!r}{suggestion(name, options)}")


def shown(value: Any) -> str:
    """A value as it is written in a config.

    >>> shown(None), shown([True, "a", 0.5]), shown({"lr": 0.1})
    ('null', "[true, 'a', 0.5]", '{lr: 0.1}')
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{name}: {shown(item)}' for name, item in value.items())}}}"
        case _:
            return repr(value)
