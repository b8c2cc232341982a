"""Read files that a kill, a disk or a stranger may have damaged: whatever is wrong with one is a `RecordError`.

The content is checked against a type, such as a record of `hydrant.records`, so readers get only what they expect.
"""

import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hydrant.errors import RecordError
from hydrant.files.bounded_yaml import MAX_DEPTH, PlainLoader, reason_of
from hydrant.records import check_type, parse_json

T = TypeVar("T")

MAX_BYTES = 1 << 25
"""The most of a JSON file, and of a line of rows."""
_MAX_YAML_BYTES = 1 << 20  # parsed in a second
_MAX_BITS = 64  # of a whole number, which seeds may have


_ERRORS = (ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Of parsing. The last four are for values that do not fit their tag in YAML."""


def read_bytes(file: Path, remedy: str = "", limit: float = math.inf) -> bytes | None:
    """Return the content of a file; None if there is none.

    Raises:
        RecordError: it is a folder, a pipe or a device, has more bytes than the limit, or it cannot be read.
    """
    try:
        status = file.stat()
        if (
            not stat.S_ISREG(status.st_mode) or status.st_size > limit
        ):  # opening a pipe would wait for its writer
            reason = f"it has {status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "it is no file"
            raise RecordError(f"{file} is damaged ({reason})", remedy=remedy)
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{file} cannot be read ({reason})", remedy=remedy) from error


def read_json(file: Path, kind: type[T], remedy: str = "", fields: Any = Any) -> T | None:
    """Return the content of a JSON file; None if there is none.

    Args:
        kind: the type of the content. A record leaves out the fields that it does not name; a dict has them.
        remedy: the end of an error message.
        fields: a record, to whose types the content must fit too.

    Raises:
        RecordError: the file is damaged.
    """
    return _read(file, parse_json, kind, remedy, MAX_BYTES, fields)


def read_yaml(file: Path, kind: type[T], remedy: str = "", fields: Any = Any) -> T | None:
    """Return the content of a YAML file; None if there is none. Arguments and errors are those of `read_json`."""
    return _read(
        file,
        lambda text: yaml.load(text.decode("utf-8-sig"), PlainLoader),
        kind,
        remedy,
        _MAX_YAML_BYTES,
        fields,
    )


def _read(
    file: Path, parse: Callable[[bytes], Any], kind: type[T], remedy: str, limit: int, fields: Any
) -> T | None:
    text = read_bytes(file, remedy, limit)
    if text is None:
        return None
    try:
        content = parse(text)
        check_plain(content)
        check_type(content, fields)
        return check_type(content, kind)
    except _ERRORS as error:
        raise RecordError(f"{file} is damaged ({reason_of(error)})", remedy=remedy) from error


def check_plain(value: Any, depth: int = 0) -> None:
    """Check that a value has only types that JSON and a config can hold (no dates, for example), and can be printed.

    Raises:
        ValueError: it is not, or it is nested too deep.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    match value:
        case dict():
            for key, item in value.items():
                check_plain(key, depth + 1)
                check_plain(item, depth + 1)
        case list():
            for item in value:
                check_plain(item, depth + 1)
        case str():
            value.encode()  # half of a surrogate pair can be written neither to a file nor to a terminal
            if "\0" in value:  # no path may contain it
                raise ValueError("a text has a zero byte")
        case int() if value.bit_length() > _MAX_BITS:
            raise ValueError(f"a number has {value.bit_length()} bits")
        case int() | float() | None:
            pass
        case _:
            raise ValueError(f"a value is of the type {type(value).__name__}")
