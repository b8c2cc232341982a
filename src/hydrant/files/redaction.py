"""Remove secrets from everything that goes to a run folder, to a tracker or to the terminal."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"

_NUMBERS = r"""['"]?\s*[=:]\s*\[?[\d., ]+(?:[\]}&;\s]|$)"""
_NAMES = (
    r"(?:api_?key|(?:access|private|secret)_?key|secret|password|passwd|pwd|credential|bearer|signature)s?"
    rf"|auth|authorization|token|tokens(?!{_NUMBERS})"  # tokens=12 is not a secret
)
_WORDS = rf"(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z]))(?i:{_NAMES})"  # api_key, apiKey; not monkey_api
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_VALUE = (
    rf"(?!null\b|true\b|false\b)({_QUOTED}|\[(?:[^\]'\"]|{_QUOTED})*\]|\{{(?:[^}}'\"]|{_QUOTED})*\}}"
    r"""|['"]?[^\s,&;'"\]}]+)"""
)

_KEY = re.compile(rf".*{_WORDS}")
_ASSIGNED = re.compile(rf"({_WORDS}=){_VALUE}")
_IN_BRACES = re.compile(rf"""([{{,]\s*['"]?[\w.-]*{_WORDS}['"]?\s*:\s*){_VALUE}""")
_IN_QUOTES = re.compile(rf"""(['"])((?:(?!\1)[^\\\n]|\\.)*?{_WORDS}=)(?:(?!\1)[^\\\n]|\\.)+(?=\1)""")
_ABOUT_KEY = re.compile(rf"({_WORDS}: )(.*)")  # the message of a ConfigError
_STRING = re.compile(_QUOTED)
_OVERRIDE = re.compile(rf"([+~]*[\w.@/-]*{_WORDS}=)(?!{re.escape(HIDDEN)}).*", re.DOTALL)
_IN_HEADER = re.compile(
    r"""(authorization[:=]\s*(?:(?:bearer|basic|token)\s+)?|\bbearer\s+(?=\S{8}))[^\s,&;'"\]}]+""",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(://(?:[^/\s:@]*:)?)(?:(?<=:)(?<!//)[^/\s]+|[^/\s:@]{20,})@")
_SIGNS = re.compile(r"[:=\s]")  # one of them is in all that the five patterns above find
_VARIABLE = re.compile(
    r".*(?:API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE)S?(?:_.*)?"
    r"|(?:.*_)?(?:KEY|CREDENTIALS?|PAT|PASS)|.+_PWD",
    re.IGNORECASE,
)
_CONTROLS = re.compile(
    r"(?!\x1b\[[01]m)[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
"""Characters that control a terminal or change the direction of text; all but bold type."""

_ESCAPES = r"%[0-9A-Fa-f]{2}|\\+[abfnrtv]|\\+[xuU][0-9A-Fa-f]{2,8}|[\s'\"\\]"


def redacted(value: Any) -> Any:
    """Return a config, or any value of plain types, with its secrets replaced by `***`.

    A string under a key such as `api_key`, `token` or `password` is replaced as a whole, and so is the value of such an
    override in a list; other strings are passed to `redacted_text`.

    >>> redacted({"tracker": {"api_key": "abcd1234", "mode": "online"}, "words": ["hf_token=abcd"]})
    {'tracker': {'api_key': '***', 'mode': 'online'}, 'words': ['hf_token=***']}
    """
    return _redacted(value, "", _secrets())


def redacted_text(text: str) -> str:
    """Return a text without the values of secret environment variables, passwords in URLs and `token=...`.

    >>> redacted_text("data.root=https://me:hunter2@host/data +model.kwargs={hf_token: abcd}")
    'data.root=https://me:***@host/data +model.kwargs={hf_token: ***}'
    """
    return _text(text, _secrets())


def public(text: str) -> str:
    """Return a text without secrets, and with control characters as escapes, because a terminal would obey them.

    >>> public("a name\x1b]0;title\x07")
    'a name\\\\x1b]0;title\\\\x07'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), redacted_text(text))


def _redacted(value: Any, key: str, secrets: re.Pattern[str] | None) -> Any:
    match value:
        case str():
            return HIDDEN if _KEY.fullmatch(key) else _text(value, secrets)
        case Mapping():
            inherited = key if _KEY.fullmatch(key) else ""
            return {name: _redacted(item, inherited or str(name), secrets) for name, item in value.items()}
        case list() | tuple():
            return [_redacted(_without_value(item), key, secrets) for item in value]
        case _:
            return value


def _without_value(item: Any) -> Any:
    is_secret = isinstance(item, str) and _OVERRIDE.fullmatch(item)
    return _OVERRIDE.sub(rf"\g<1>{HIDDEN}", item) if is_secret else item


def _text(text: str, secrets: re.Pattern[str] | None) -> str:
    if secrets is not None:
        text = secrets.sub(HIDDEN, text)
    if not _SIGNS.search(text):
        return text
    text = _IN_URL.sub(rf"\g<1>{HIDDEN}@", text)
    text = _IN_HEADER.sub(rf"\g<1>{HIDDEN}", text)
    text = _IN_QUOTES.sub(rf"\g<1>\g<2>{HIDDEN}", text)
    text = _ABOUT_KEY.sub(lambda match: match[1] + _STRING.sub(HIDDEN, match[2]), text)
    return _IN_BRACES.sub(rf"\g<1>{HIDDEN}", _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text))


def _secrets() -> re.Pattern[str] | None:
    """Return a pattern for the values of variables such as WANDB_API_KEY. Short values and paths do not count."""
    values = [os.environ[name] for name in os.environ if _is_secret(name)]
    # A message may have the first line of a value only.
    parts = {part.strip() for value in values for part in (value, *value.splitlines())}
    return _pattern(frozenset(part for part in parts if len(part) >= 8 and not os.path.exists(part)))  # noqa: PTH110


_is_secret = lru_cache(1024)(_VARIABLE.fullmatch)


@lru_cache
def _pattern(secrets: frozenset[str]) -> re.Pattern[str] | None:
    """Return a pattern for these values, also where quotes, JSON, YAML, a shell or a URL have escaped characters."""
    longest_first = sorted(secrets, key=len, reverse=True)  # one value may be the beginning of another
    return re.compile("|".join(map(_escaped, longest_first))) if secrets else None


def _escaped(secret: str) -> str:
    parts = re.split(r"([^A-Za-z0-9]+)", secret)  # words, and what is between them
    return "".join(rf"(?:{_ESCAPES}|[{re.escape(part)}])+" if n % 2 else part for n, part in enumerate(parts))
