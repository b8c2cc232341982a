"""Remove secrets from everything that goes to a run folder, to a tracker or to the terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"

_NUMBERS = r"""['"]?\s*[=:]\s*\[?[\d., ]+(?:[\]}&;\s]|$)"""
_NAMES = (
    r"(?:api_?key|(?:access|private|secret)_?key|secret|password|passwd|pwd|credential|bearer|signature)s?"
    rf"|auth|authorization|token|tokens(?!{_NUMBERS})"  # tokens=12 is not a secret
)
_WORDS = rf"(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))(?i:{_NAMES})"  # api_key, apiKey; not monkey_api
_VALUE = r"""(?!null\b|true\b|false\b)('[^']*'|"[^"]*"|\[[^\]]*\]|[^\s,&;'"\]}]+)"""

_KEY = re.compile(rf".*{_WORDS}")
_ASSIGNED = re.compile(rf"({_WORDS}=){_VALUE}")
_IN_BRACES = re.compile(rf"""([{{,]\s*['"]?[\w.-]*{_WORDS}['"]?\s*:\s*){_VALUE}""")
_IN_HEADER = re.compile(
    r"""(authorization[:=]\s*(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S{8}))[^\s,&;'"\]}]+""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://(?:[^/\s:@]*:)?)(?:(?<=:)(?<!//)[^/\s]+|[^/\s:@]{20,})@")
_VARIABLE = re.compile(
    r"(?:.*_)?(?:(?:API_?KEY|ACCESS_KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:_.*)?|KEY|CREDENTIALS?|PAT)"
)


def redacted(value: Any, key: str = "") -> Any:
    """Return a config, or any value of plain types, with its secrets replaced by `***`.

    A string under a key such as `api_key`, `token` or `password` is replaced as a whole; other strings are passed to
    `redacted_text`.

    >>> redacted({"tracker": {"api_key": "abcd1234", "mode": "online"}, "words": ["hf_token=abcd"]})
    {'tracker': {'api_key': '***', 'mode': 'online'}, 'words': ['hf_token=***']}
    """
    return _redacted(value, key, _secrets())


def redacted_text(text: str) -> str:
    """Return a text without the values of secret environment variables, passwords in URLs and `token=...`.

    >>> redacted_text("data.root=https://me:hunter2@host/data +model.kwargs={hf_token: abcd}")
    'data.root=https://me:***@host/data +model.kwargs={hf_token: ***}'
    """
    return _text(text, _secrets())


def _redacted(value: Any, key: str, secrets: Sequence[str]) -> Any:
    match value:
        case str():
            return HIDDEN if _KEY.fullmatch(key) else _text(value, secrets)
        case Mapping():
            inherited = key if _KEY.fullmatch(key) else ""
            return {name: _redacted(item, inherited or str(name), secrets) for name, item in value.items()}
        case list() | tuple():
            return [_redacted(item, key, secrets) for item in value]
        case _:
            return value


def _text(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}@", text)
    text = _IN_HEADER.sub(rf"\g<1>{HIDDEN}", text)
    return _IN_BRACES.sub(rf"\g<1>{HIDDEN}", _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text))


def _secrets() -> list[str]:
    """Return the values of variables such as WANDB_API_KEY, the longest first. Short values and paths do not count."""
    values = [
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and _VARIABLE.fullmatch(name) and not os.path.exists(value)  # noqa: PTH110
    ]
    return sorted(values, key=len, reverse=True)  # one value may be the beginning of another
