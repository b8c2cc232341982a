"""Drop what the gathered definitions have for other configs, and give private names public ones."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping

from hydrant.commands.eject.bundle import renamed
from hydrant.commands.eject.gather import Gathered
from hydrant.commands.eject.inline import inlined
from hydrant.commands.eject.names import bound_names, names_in
from hydrant.commands.eject.own import is_of_user
from hydrant.commands.eject.parts import Constant, Parts
from hydrant.commands.eject.prune import (
    drop_unused_attributes,
    drop_unused_methods,
    drop_unused_options,
    drop_unused_parameters,
)
from hydrant.commands.eject.simplify import (
    simplified,
    with_inlined_methods,
    with_known_flags,
    without_defaults,
    without_returned_locals,
)
from hydrant.commands.eject.specialize import Specializer

_CLEARER = {"mix": "hash_of", "_MIX": "MULTIPLIERS"}
"""Other names for definitions of Hydrant, because a file may mix samples too."""


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
    for _ in range(2):  # attributes that are dropped leave values that are constants
        texts = drop_unused_attributes(_specialized(texts, own, gathered, parts), bundled)
    texts = drop_unused_parameters(drop_unused_options(texts, own), list(texts))
    if "add_gradients" in texts:
        texts["main"] = inlined(texts["main"], texts["add_gradients"]) or texts["main"]
    public = _public_names(texts, own, gathered.external)
    renames = {**public, **{alias: name for alias, (_, name) in parts.aliases.items()}}
    texts = {public.get(name, name): renamed(text, renames) for name, text in texts.items()}
    entries = {public.get(name, name): entry for name, entry in entries.items()}
    gathered.origins = {public.get(name, name): origin for name, origin in gathered.origins.items()}
    gathered.entries = {name: entries[name] for name in _reachable(texts, "main")}
    for name, entry in gathered.entries.items():
        entry.text = texts[name]


def _specialized(
    texts: Mapping[str, str], own: Collection[str], gathered: Gathered, parts: Parts
) -> dict[str, str]:
    """Use constants directly in copied definitions, and add those that are computed of others."""
    changed = [name for name in texts if name in own]
    specializer = Specializer(texts, {*parts.constants, *gathered.external}, changed)
    shorter, constants = specializer.texts, parts.constants
    for name, value in specializer.hoisted.items():
        needed = names_in(value)
        last = max(position for position, known in enumerate(constants) if known in needed)
        before, after = list(constants.items())[: last + 1], list(constants.items())[last + 1 :]
        hoisted = Constant(value, group=before[-1][1].group)
        constants = dict([*before, (name, hoisted), *after])
        gathered.constants.add(name)
    parts.constants = constants
    for name in changed:
        known = {**parts.known, **parts.known_in.get(name, {})}
        text = with_known_flags(simplified(shorter[name], known), known)
        shorter[name] = without_returned_locals(without_defaults(text))
    return with_inlined_methods(shorter, changed)


def _public_names(
    texts: Mapping[str, str], own: Collection[str], external: Collection[str]
) -> dict[str, str]:
    """Return other names for private ones and unclear ones, unless something has them."""
    public = {name: name.lstrip("_") for name in texts if name.startswith("_")}
    public |= {name: _CLEARER[name] for name in texts if name in _CLEARER and name in own}
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
