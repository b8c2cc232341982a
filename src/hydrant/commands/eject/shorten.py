"""Drop what the gathered definitions have for other configs, and give private names public ones."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

from hydrant.commands.eject.bundle import renamed
from hydrant.commands.eject.couplings import CLEARER
from hydrant.commands.eject.gather import Gathered
from hydrant.commands.eject.own import is_of_user
from hydrant.commands.eject.parts import Parts
from hydrant.commands.eject.prune import (
    drop_unused_attributes,
    drop_unused_methods,
    drop_unused_parameters,
)
from hydrant.commands.eject.source_edits import bound_names, names_in


def shorten(gathered: Gathered, parts: Parts) -> None:
    """Shorten the definitions, and leave only those that `main` needs."""
    entries = gathered.entries
    texts = {name: entry.text for name, entry in entries.items()}
    bundled = {name for name, entry in entries.items() if entry.is_bundled}

    def inherits(name: str, method: str) -> bool:
        kind = getattr(importlib.import_module(gathered.origins[name]), name)
        return any(hasattr(base, method) for base in kind.__mro__[1:])

    texts = drop_unused_methods(texts, bundled, inherits)
    own = {name for name in bundled if not is_of_user(gathered.origins[name])}
    texts = drop_unused_attributes(texts, bundled)
    texts = drop_unused_parameters(texts, list(texts))
    public = _public_names(texts, own, gathered.external)
    renames = {**public, **{alias: name for alias, (_, name) in parts.aliases.items()}}
    texts = {public.get(name, name): renamed(text, renames) for name, text in texts.items()}
    entries = {public.get(name, name): entry for name, entry in entries.items()}
    gathered.origins = {public.get(name, name): origin for name, origin in gathered.origins.items()}
    gathered.entries = {name: entries[name] for name in _reachable(texts, "main")}
    for name, entry in gathered.entries.items():
        entry.text = texts[name]


def _public_names(
    texts: Mapping[str, str], own: Collection[str], external: Collection[str]
) -> dict[str, str]:
    """Return other names for private ones and unclear ones, unless something has them."""
    public = {name: name.lstrip("_") for name in texts if name.startswith("_")}
    public |= {name: CLEARER[name] for name in texts if name in CLEARER and name in own}
    taken = {*texts, *external, *(bound for text in texts.values() for bound in bound_names(text))}
    return {name: short for name, short in public.items() if short not in taken}


def _reachable(texts: Mapping[str, str], start: str) -> list[str]:
    """Return the definitions that one needs, directly or by others, in their order in `texts`."""
    found, waiting = {start}, [start]
    while waiting:
        new = (names_in(texts[waiting.pop()]) & texts.keys()) - found
        found |= new
        waiting += new
    return [name for name in texts if name in found]
