"""Records: the files of a run folder and the answers of the commands, each defined once.

What is read, what JSON Schemas allow and what the tables of the docs say follow from the fields of these classes, their
types, and the `Attributes` of their docstrings.
"""

import codecs
from typing import Any

import msgspec

_MAX_REASON = 120  # characters, as a wrong value may be long


def parse_json(text: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON in UTF-8. The constants NaN and Infinity are refused.
    """
    try:
        return msgspec.json.decode(text.removeprefix(codecs.BOM_UTF8))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def check_type(value: Any, kind: Any) -> Any:
    """Return plain values as a type made of records, dict, list, Literal, plain types and `X | None`.

    Raises:
        ValueError: names a wrong or missing value.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(repr(str(error))[1:-1][:_MAX_REASON]) from None
