"""The file `.env` in the working folder: variables for commands, read in trusted projects and never written down."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hydrant.errors import ConfigError, RecordError, first_line
from hydrant.files.read_file import read_bytes
from hydrant.files.redaction import DOTENV_NAMES
from hydrant.safety.trust import check_private, working_project

FILE = ".env"

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)", re.ASCII)
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")\s*(?:#.*)?""")
_ESCAPE = re.compile(r"\\(.)")
_REFUSED = re.compile(
    r"(LD|DYLD|GIT|XDG|TORCHINDUCTOR|TRITON|BASH|PERL5|JAVA|NODE)_.*|PYTHON.*|MPL.*|MATPLOTLIBRC|PERL5.*|RUBYOPT"
    r"|PATH|HOME|TMPDIR|TEMP|TMP|SHELL|ENV|IFS|EDITOR|VISUAL|PAGER|BROWSER"
    r"|CC|CXX|CPP|AR|(C|CXX|CPP|LD)FLAGS|NVCC.*|CUDAHOSTCXX|CUDA_(HOME|PATH|ROOT|INJECTION.*)"
    r"|TORCH_(EXTENSIONS_DIR|CUSTOM_PYTHONPATH|LOGS_OUT)|.*TRUST_REMOTE_CODE|HYDRANT_ALLOW_TARGETS"
    rf"|{DOTENV_NAMES}"
)
"""Variables that decide what is trusted or which code runs: programs, compilers, libraries, caches of code."""

_MAX_BYTES = 1 << 16


def read_dotenv() -> str:
    """Set the variables of `.env` that are not set yet, and return why it is not read; "" if it is, or there is none.

    A project that is not trusted may not set variables, because they decide, for example, who receives the results. The
    names are noted in a variable, by which this process and those that it starts hide the values (`redaction`).

    Raises:
        ConfigError: names the line that is wrong, or the variable that the file may not set. No value is in a message.
    """
    file = Path.cwd() / FILE
    if not os.path.lexists(file):
        return ""
    if not working_project().is_trusted:
        return f"{FILE} is not read, because this folder is not trusted; if it is your project, run: hydrant trust"
    if not file.exists():
        raise ConfigError(
            FILE,
            f"is a link to {file.readlink()}, which does not exist",
            remedy="remove it, or write that file",
        )
    check_private(file, FILE)
    try:
        content = read_bytes(file) or b""
    except RecordError as error:
        raise ConfigError(FILE, str(error)) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(FILE, f"has {len(content):,} bytes; it may have {_MAX_BYTES:,}")
    new = {name: value for name, value in parse(content).items() if name not in os.environ}
    os.environ.update(new)
    known = os.environ.get(DOTENV_NAMES, "").split(",")
    os.environ[DOTENV_NAMES] = ",".join(dict.fromkeys([*filter(None, known), *new]))
    return ""


def parse(content: bytes) -> dict[str, str]:
    """Return the variables of lines `NAME=value`, `export NAME='value'` and `NAME="a\\nb"  # comment`.

    >>> parse(b"# keys\\nexport A=1 # one\\nB='x # y'\\nC=\\"two\\\\nlines\\"")
    {'A': '1', 'B': 'x # y', 'C': 'two\\nlines'}

    Raises:
        ConfigError: names the line that is wrong, or the variable that the file may not set.
    """
    try:
        text = content.decode().lstrip("\ufeff")
    except UnicodeDecodeError as error:
        raise ConfigError(FILE, first_line(error)) from error
    variables: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or "\0" in line:
            raise ConfigError(FILE, f"line {number} is not NAME=value")
        name = match[1]
        if _REFUSED.fullmatch(name):
            message = f"line {number} may not set {name}, which decides which code runs or what is trusted"
            raise ConfigError(FILE, message, remedy="set it in your shell")
        if name in variables:
            raise ConfigError(FILE, f"line {number} sets {name} again", remedy="remove one of them")
        variables[name] = _value(match[2], number)
    return variables


def _value(text: str, number: int) -> str:
    if not text.startswith(("'", '"')):
        return re.split(r"(?:^|\s)#", text)[0].strip()
    match = _QUOTED.fullmatch(text)
    if match is None:
        raise ConfigError(FILE, f"line {number} has a quote that is not closed, or text after it")
    if match[1] is not None:
        return match[1]
    return _ESCAPE.sub(lambda found: {"n": "\n", "t": "\t", "r": "\r"}.get(found[1], found[1]), match[2])
