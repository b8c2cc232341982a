"""YAML loaders with limits on depth and size, because a short text can describe 10**9 nodes or overflow the stack.

An alias such as `*a` repeats a node. Aliases of aliases multiply, and everything that walks through the config would
take hours. libyaml's own composer crashes the process on 100,000 brackets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

MAX_DEPTH = 50
"""Of nested lists and maps. OmegaConf needs about ten frames of Python's stack for each."""
MAX_NODES = 20_000
"""Of lists, maps and values, where every alias counts as many as it repeats. OmegaConf needs 7 s for these."""

if TYPE_CHECKING:
    from yaml import SafeLoader as Parser
else:
    Parser = getattr(yaml.cyaml, "CParser", yaml.SafeLoader)  # with libyaml seven times as fast


class BoundedComposer(Composer):
    """The part of a YAML loader that has the limits.

    Raises:
        ComposerError: a document is nested too deep, is too large, or repeats a node inside of itself.
    """

    _depth = _num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[attr-defined]  # of the parser
        before, is_alias = self._num_nodes, isinstance(event, yaml.AliasEvent)
        self._depth, self._num_nodes = self._depth + 1, before + 1
        self._check(event.start_mark)
        node: Any = super().compose_node(parent, index)  # type: ignore[no-untyped-call]
        if is_alias:
            self._num_nodes += getattr(
                node, "num_nodes", MAX_NODES
            )  # a node that is not complete contains itself
            self._check(event.start_mark)
        elif node is not None:
            node.num_nodes = self._num_nodes - before
        self._depth -= 1
        return node

    def _check(self, mark: yaml.Mark) -> None:
        if self._depth > MAX_DEPTH:
            raise ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)
        if self._num_nodes > MAX_NODES:
            raise ComposerError(
                None, None, f"more than {MAX_NODES:,} values, with those that aliases repeat", mark
            )


class PlainLoader(BoundedComposer, Parser, SafeConstructor, Resolver):
    """Reads what OmegaConf writes, and as OmegaConf does: dates are strings, 1e-3 is a number."""

    def __init__(self, text: str) -> None:
        Parser.__init__(self, text)
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in Resolver.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)
