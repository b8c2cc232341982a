"""Read files that a kill, a disk or a stranger may have damaged: whatever is wrong with one is a `RecordError`.

The content is checked against a type, so readers get only the types that they expect.

Short digests of files, by which a changed content is known. Imports no torch.
"""

import json
import math
import stat
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import yaml

from hydrant.errors import RecordError, shown
from hydrant.files.bounded_yaml import MAX_DEPTH, PlainLoader, reason_of
from hydrant.files.plain_values import describe

T = TypeVar("T")


def _is_amount(number: float) -> bool:
    return number >= 0


def _is_probability(number: float) -> bool:
    return 0 < number < 1


Count = Annotated[int, "a whole number of 0 or more", _is_amount]
Amount = Annotated[float, "a number of 0 or more", _is_amount]
Probability = Annotated[float, "a number between 0 and 1", _is_probability]
Line = Annotated[str, "a text of one line", str.isprintable]

MAX_BYTES = 1 << 25
"""The most of a JSON file, and of a line of rows."""
_MAX_YAML_BYTES = 1 << 20  # parsed in a second
_MAX_DIGITS = 18  # of a whole number in JSON: others fit into no array
_MAX_SHOWN = 40  # characters of a wrong value in a message
_MAX_BITS = 64  # of a whole number in YAML, which seeds may have


def read_bytes(file: Path, remedy: str = "", limit: float = math.inf) -> bytes | None:
    """Return the content of a file; None if there is none.

    Raises:
        RecordError: it is a folder, a pipe or a device, has more bytes than the limit, or it cannot be read.
    """
    try:
        found = file.stat()
        if (
            not stat.S_ISREG(found.st_mode) or found.st_size > limit
        ):  # opening a pipe would wait for its writer
            reason = f"it has {found.st_size:,} bytes" if stat.S_ISREG(found.st_mode) else "it is no file"
            raise RecordError(f"{file} is damaged ({reason}){remedy}")
        return file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordError(f"{file} cannot be read ({reason}){remedy}") from error


def read_json(file: Path, kind: type[T], remedy: str = "") -> T | None:
    """Return the content of a JSON file; None if there is none.

    Args:
        kind: the type of the content. Keys that a TypedDict does not name are allowed.
        remedy: the end of an error message.

    Raises:
        RecordError: the file is damaged.
    """
    return _read(file, parse_json, kind, remedy, MAX_BYTES)


def read_yaml(file: Path, kind: type[T], remedy: str = "") -> T | None:
    """Return the content of a YAML file; None if there is none. Arguments and errors are those of `read_json`."""
    return _read(file, _parse_yaml, kind, remedy, _MAX_YAML_BYTES)


def parse_json(text: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON in UTF-8. The constants NaN and Infinity, and whole numbers of more than 18 digits,
            are refused.
    """
    try:
        return _JSON.decode(text.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_parse_int)


def _parse_yaml(text: bytes) -> Any:
    try:
        return yaml.load(text.decode("utf-8-sig"), PlainLoader)
    except (LookupError, TypeError, AttributeError, ArithmeticError) as error:  # of PyYAML's conversions
        raise ValueError("a value does not fit its tag") from error


def _read(file: Path, parse: Callable[[bytes], Any], kind: type[T], remedy: str, limit: int) -> T | None:
    text = read_bytes(file, remedy, limit)
    if text is None:
        return None
    try:
        content = parse(text)
        check_plain(content)
        check_type(content, kind)
        return content
    except (ValueError, yaml.YAMLError) as error:
        raise RecordError(f"{file} is damaged ({reason_of(error)}){remedy}") from error


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


def check_type(value: Any, hint: Any, key: str = "") -> None:
    """Check plain values against a type made of TypedDict, dict, list, Literal, plain types and `X | None`.

    `Annotated[X, "0 or more", lambda x: x >= 0]` is an X with a condition, which an error says in these words.

    Raises:
        ValueError: names the key of a wrong or missing value.
    """
    origin, arguments, is_record, kinds = _parts(hint)
    if origin is typing.Annotated:
        base, needs, is_in_range = arguments
        check_type(value, base, key)
        if not is_in_range(value):
            raise ValueError(f"{key} needs {needs}, not {shown(value)[:_MAX_SHOWN]}")
        return
    if origin in (types.UnionType, typing.Union):
        if value is not None:
            check_type(value, arguments[0], key)
        return
    if origin is typing.Any:
        return
    is_valid = value in arguments if origin is typing.Literal else type(value) in kinds
    if not is_valid or value in (math.inf, -math.inf):  # such as 1e999
        needed = describe(dict if is_record else hint)
        raise ValueError(f"{key or 'it'} needs {needed}, not {shown(value)[:_MAX_SHOWN]}")
    missing = sorted(hint.__required_keys__ - value.keys()) if is_record else []
    if missing:
        raise ValueError(f"it has no {_join(key, missing[0])}")
    for name, item, inner in _items(value, hint, is_record):
        check_type(item, inner, _join(key, name))


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...], bool, tuple[Any, ...]]:
    """Return the origin of a type, its arguments, whether it is a TypedDict, and the classes of its values."""
    origin, is_record = typing.get_origin(hint) or hint, typing.is_typeddict(hint)
    kinds = (int, float) if origin is float else (dict if is_record else origin,)
    return origin, typing.get_args(hint), is_record, kinds


@cache
def _hints(record: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(record, include_extras=True)


def _items(value: Any, hint: Any, is_record: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the name, the value and the type of what a valid value contains."""
    if is_record:
        yield from (("a key", name, str) for name in value)
        yield from ((n, value[n], inner) for n, inner in _hints(hint).items() if n in value)
    elif isinstance(value, dict) and (arguments := _parts(hint)[1]):
        for name, item in value.items():
            yield "a key", name, arguments[0]
            yield name, item, arguments[1]
    elif isinstance(value, list) and (arguments := _parts(hint)[1]):
        yield from ((place, item, arguments[0]) for place, item in enumerate(value))


def _join(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)
