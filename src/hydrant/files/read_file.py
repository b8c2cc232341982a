"""Read files that a kill, a disk or a stranger may have damaged: whatever is wrong with one is a `RecordError`.

The content is checked against a type, such as a record of `hydrant.records`, so readers get only what they expect.

YAML loaders with limits read a value as the command line does, or refuse it. They limit depth and size, because a short
text can describe 10**9 nodes or overflow the stack. An alias such as `*a` repeats a node. Aliases of aliases multiply,
and everything that walks through the config would take hours. libyaml's own composer crashes the process on 100,000
brackets. PyYAML needs minutes to convert a megabyte of `1:59:59:...`, a number to the base 60.
"""

import math
import re
import stat
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from yaml import MarkedYAMLError, YAMLError
from yaml.composer import Composer, ComposerError
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from hydrant.errors import RecordError, first_line, shown
from hydrant.records import check_type, parse_json

MAX_DEPTH = 50
"""The deepest nesting of lists and maps. OmegaConf needs about ten frames of Python's stack for each level."""
MAX_NODES = 20_000
"""The most lists, maps and values. An alias counts as many as it repeats. OmegaConf takes 7 s for so many."""
_MAX_NUMBER = 100
"""The most characters of a number."""
_INT, _FLOAT, _BOOL, _STR = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "str"))
TEXT_KEYS = ("name", "claim", "notes", "resume", "init_from")
"""Keys whose value is a text, even if it looks like a number: `name: 1e5` is not 100000.0."""
_PLAIN = {
    _INT: re.compile(r"[-+]?(0|[1-9][0-9_]*)"),
    _FLOAT: re.compile(r"[^:]*"),
    _BOOL: re.compile(r"(?i:true|false)"),
}
"""The forms that mean the same on the command line. YAML 1.1 has others, such as 1:30, 010 and `on`."""

if TYPE_CHECKING:
    from yaml import SafeLoader as Parser
else:
    Parser = getattr(yaml.cyaml, "CParser", yaml.SafeLoader)  # with libyaml seven times as fast


class BoundedComposer(Composer):
    """The part of a YAML loader that has the limits.

    Raises:
        ComposerError: a document is nested too deep, is too large, has a number that is too long, or repeats a node
            inside of itself.
    """

    _depth = _num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # pyrefly: ignore[missing-attribute]  # of the parser
        before, is_alias = self._num_nodes, isinstance(event, yaml.AliasEvent)
        self._depth, self._num_nodes = self._depth + 1, before + 1
        self._check(event.start_mark)
        node: Any = super().compose_node(parent, index)
        if is_alias:
            # A node that is not complete contains itself.
            self._num_nodes += getattr(node, "num_nodes", MAX_NODES)
            self._check(event.start_mark)
        elif node is not None:
            node.num_nodes = self._num_nodes - before
            if node.tag in _PLAIN:
                self._resolve(node, isinstance(index, yaml.ScalarNode) and index.value in TEXT_KEYS)
        self._depth -= 1
        return node

    def _resolve(self, node: yaml.ScalarNode, is_text: bool) -> None:
        """Turn a number into a text where a text is needed, and refuse values that mean something else on the command
        line."""
        text = node.value
        if is_text and not node.style and node.tag != _BOOL:
            node.tag = _STR
        elif len(text) > _MAX_NUMBER:
            raise ComposerError(None, None, f"a number has {len(text):,} characters", node.start_mark)
        elif not (node.style or _PLAIN[node.tag].fullmatch(text)):
            make: Any = SafeConstructor.yaml_constructors[node.tag]
            value = shown(make(self, node))
            message = f"YAML reads {text} as {value}; write {value}, or '{text}' with quotes for a text"
            raise ComposerError(None, None, message, node.start_mark)

    def _check(self, mark: yaml.Mark) -> None:
        is_deep = self._depth > MAX_DEPTH
        if is_deep or self._num_nodes > MAX_NODES:
            much = f"more than {MAX_NODES:,} values, with those that aliases repeat"
            reason = f"nested more than {MAX_DEPTH} levels deep" if is_deep else much
            raise ComposerError(None, None, reason, mark)


def reason_of(error: Exception) -> str:
    """Return why a text cannot be read, with its line if PyYAML names it."""
    if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        return f"line {mark.line + 1}: {error.problem or error.context}"
    return first_line(error)


class _Constructor(SafeConstructor):
    """Refuses a key that a mapping has twice, as OmegaConf does."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            if key.tag == _STR and key.value in seen:
                reason = f"found duplicate key {key.value}"
                raise ConstructorError("while reading a mapping", node.start_mark, reason, key.start_mark)
            seen.update([key.value] if key.tag == _STR else [])
        return super().construct_mapping(node, deep)


class _Resolver(Resolver):
    """Finds the type of a text as OmegaConf does: dates are strings, 1e-3 is a number."""


_Resolver.yaml_implicit_resolvers = {  # pyrefly: ignore[instance-var-assign]  # yaml has it in the class
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in Resolver.yaml_implicit_resolvers.items()
}
_Resolver.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
        |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?)$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)


class PlainLoader(BoundedComposer, Parser, _Constructor, _Resolver):
    """Reads values as OmegaConf does."""

    def __init__(self, text: str) -> None:
        Parser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


class MarkingLoader(BoundedComposer, _Constructor, _Resolver, yaml.SafeLoader):
    """Reads what `PlainLoader` reads, slowly. Its errors say more, and it knows where each node ends."""


def load_config(text: str) -> Any:
    """Return the content of a config file.

    Raises:
        YAMLError: it cannot be read.
    """
    try:
        return yaml.load(text, PlainLoader)
    except YAMLError:
        return yaml.load(text, MarkingLoader)


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
        # Opening a pipe would wait for its writer.
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
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


def read_yaml(file: Path, kind: type[T], fields: Any = Any) -> T | None:
    """Return the content of a YAML file; None if there is none. Arguments and errors are those of `read_json`."""
    return _read(
        file, lambda text: yaml.load(text.decode("utf-8-sig"), PlainLoader), kind, "", _MAX_YAML_BYTES, fields
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
        case dict() | list():
            for item in value if isinstance(value, list) else chain(*value.items()):
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
