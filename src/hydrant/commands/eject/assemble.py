"""Put the definitions of a program together into one file, with only what it needs."""

from __future__ import annotations

import ast
import importlib
import itertools
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hydrant.commands.eject.bundle import (
    PROGRAM,
    Definition,
    defining_module,
    is_copied,
    is_own,
    is_stand_in,
    read_module,
    renamed,
)
from hydrant.commands.eject.choices import with_chosen_entries
from hydrant.commands.eject.facts import ABSENT, IDLE
from hydrant.commands.eject.fold import fold, replace_calls, without_unused_locals
from hydrant.commands.eject.inline import inlined
from hydrant.commands.eject.layout import import_lines, joined
from hydrant.commands.eject.narrow import with_narrow_annotations
from hydrant.commands.eject.own import REPLACED, is_of_user, without_helpers
from hydrant.commands.eject.prune import (
    drop_unused_attributes,
    drop_unused_methods,
    drop_unused_options,
    drop_unused_parameters,
    with_short_docs,
)
from hydrant.commands.eject.simplify import (
    with_inlined_methods,
    with_known_flags,
    without_absent_arguments,
    without_defaults,
    without_idle_layers,
    without_returned_locals,
)
from hydrant.commands.eject.source_edits import Edit, Source
from hydrant.commands.eject.specialize import Specializer, bound_names, is_value, names_in
from hydrant.errors import ConfigError

_SECTIONS = {
    "randomness": ("Random numbers", ("hydrant.seeding",)),
    "data": ("Data", ("hydrant.data",)),
    "mixing": ("Mixing", ()),
    "model": ("Model", ("hydrant.models",)),
    "loss": ("Loss and metrics", ("hydrant.tasks",)),
    "own": ("Parts of the project", ()),
    "optimizer": ("Optimizer", ("hydrant.optimizers",)),
    "schedule": ("Schedules", ("hydrant.schedules", "hydrant.clock")),
    "average": ("Average of the weights", ()),
    "ranks": ("Ranks", ()),
    "gradients": ("Gradients", ()),
    "evaluation": ("Metrics and evaluation", ()),
    "saving": ("Logging and saving", ()),
    "loop": ("Training", ()),
}
"""By the module of the program: the title of its section, and the modules whose definitions stand there too."""


_USES = "what random numbers are for: each draws from a stream of its own"


@dataclass(frozen=True)
class Constant:
    """A constant at the top of the file."""

    value: str  # as source
    comment: str = ""
    group: str = ""  # the heading under which it stands


@dataclass(frozen=True)
class Written:
    """Source that is written for a config, and where the names in it come from."""

    text: str
    section: str
    imports: Mapping[str, tuple[str, str | None]] = field(default_factory=dict[str, Any])


@dataclass
class Parts:
    """What a config needs besides the program.

    Args:
        constants: by name.
        known: the values that decide branches; those of constants among them.
        written: the definitions that replace those of the module `parts`.
        known_in: further known values inside definitions, by name.
    """

    constants: dict[str, Constant]
    known: dict[str, Any]
    written: dict[str, Written]
    known_in: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The definitions that stand for those of the module `parts`: (module, name)."""
    expressions: dict[str, Written] = field(default_factory=dict[str, Written])
    """What stands for calls of functions of the module `parts`."""


@dataclass
class _Entry:
    text: str
    section: str
    order: tuple[int, int, int]
    imports: Mapping[str, tuple[str, str | None]]
    is_bundled: bool


def assemble(parts: Parts, doc: str) -> str:
    """Return the text of the program."""
    return _Assembly(parts).text(doc)


class _Assembly:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._entries: dict[str, _Entry] = {}
        self._origins: dict[str, str] = {}  # the module of each definition, to notice two of one name
        self._constants: set[str] = set()
        self._external: dict[str, tuple[str, str | None]] = {}
        self._modules: list[str] = []
        self._counter = itertools.count()

    def text(self, doc: str) -> str:
        self._need(f"{PROGRAM}.loop", "main")
        self._prune()
        head = f'"""{doc}"""\n\n' + "\n".join(self._imports()) + "\n\n" + self._constant_lines()
        blocks = [head]
        for section, (title, _) in _SECTIONS.items():
            if texts := self._section(section):
                blocks.append(f"# {'-' * 12} {title}\n" + joined(texts))
        blocks.append(read_module(f"{PROGRAM}.loop").last)
        return "\n\n".join(block.strip("\n") + "\n" for block in blocks)

    def _section(self, section: str) -> list[str]:
        """Return the definitions of a section in their order: values that need no function first."""
        functions = {name for name, entry in self._entries.items() if not is_value(entry.text)}

        def place(name: str) -> tuple[bool, tuple[int, int, int]]:
            entry = self._entries[name]
            return name in functions or bool(_names(entry.text) & functions), entry.order

        names = sorted((name for name, entry in self._entries.items() if entry.section == section), key=place)
        uses = [name for name in names if self._origins[name] == f"{PROGRAM}.randomness"]
        texts = [self._entries[name].text for name in names if name not in uses]
        if uses:
            numbers = [self._entries[name].text.partition(" = ")[2].strip() for name in uses]
            texts.insert(0, f"{', '.join(uses)} = {', '.join(numbers)}  # {_USES}\n")
        return texts

    def _need(self, module: str, name: str) -> None:
        """Add a definition and all that it needs."""
        if is_stand_in(module):
            self._need_stand_in(module, name)
            return
        numbers = f"{PROGRAM}.randomness"
        if module == "hydrant.seeding" and name in read_module(numbers).definitions:
            module = numbers  # where each has a line of its own
        found = read_module(module).definitions[name]
        name = found.name
        if name in self._entries:
            if self._origins[name] != module:
                if is_of_user(module) or is_of_user(self._origins[name]):
                    message = (
                        f"{module} defines {name}, a name that the ejected file has already; rename it there"
                    )
                    raise ConfigError("eject", message)
                raise AssertionError(f"{name} is defined in {module} and {self._origins[name]}")
            return
        if module not in self._modules:
            self._modules.append(module)
        text, imports = self._prepared(found)
        self._origins[name] = module
        entry = _Entry(
            text, _section_of(module), (0, 0, found.position), imports, not module.startswith(PROGRAM)
        )
        self._entries[name] = entry
        self._need_names(text, module, imports)
        depth = self._modules.index(module)
        entry.order = (0 if entry.is_bundled else 1, -depth, found.position)

    def _need_stand_in(self, module: str, name: str) -> None:
        if name in self._parts.constants:
            self._constants.add(name)
        elif name in self._parts.aliases:
            self._need(*self._parts.aliases[name])
        elif name in self._parts.written and name not in self._entries:
            written = self._parts.written[name]
            self._entries[name] = entry = _Entry(
                written.text, written.section, (2, 0, 0), written.imports, False
            )
            self._origins[name] = module
            self._need_names(written.text, "", written.imports)
            entry.order = (2, 0, next(self._counter))  # after what it needs
        elif name not in self._entries:
            raise AssertionError(f"the program uses {name}, which nothing gives")

    def _prepared(self, found: Definition) -> tuple[str, Mapping[str, tuple[str, str | None]]]:
        imports = dict(read_module(found.module).imports)
        text = _without_module_names(found.text, imports)
        if not is_of_user(found.module):
            text = _without_local_imports(text, imports)
        for (origin, own), (module, name) in _OF_TORCH.items():
            if imports.get(own) == (origin, own):
                text, imports[name] = renamed(text, {own: name}), (module, name)
        if is_of_user(found.module):
            text = replace_calls(text, without_helpers)
        elif found.name in self._parts.known_in or not found.module.startswith(PROGRAM):
            text = with_short_docs(text)
        known = {**self._parts.known, **self._parts.known_in.get(found.name, {})}
        text = with_narrow_annotations(text, known)
        text = with_chosen_entries(text, known, found.module, imports)
        if found.module.startswith("hydrant.models") and self._parts.known.get("AUTOCAST") is None:
            text = renamed(text, {"RMSNorm": "nn.RMSNorm"})  # equal without autocast
        for name, written in self._parts.expressions.items():
            if name in _names(text):
                text = replace_calls(
                    text, lambda call, n=name, w=written: w.text if _calls(call, n) else None
                )
                imports |= written.imports
        if not is_of_user(found.module) and IDLE in known:
            text = without_idle_layers(_simplified(text, known), known[IDLE])
            text = without_absent_arguments(text, known.get(ABSENT, ()))
        return _simplified(text, known), imports

    def _need_names(self, text: str, module: str, imports: Mapping[str, tuple[str, str | None]]) -> None:
        definitions = read_module(module).definitions if module else {}
        for name in sorted(_names(text)):
            if name in definitions:
                self._need(module, name)
            elif name in imports:
                origin, original = imports[name]
                if is_stand_in(origin):
                    self._need(origin, original or name)
                elif is_copied(origin) and original is not None:
                    self._need_imported(module, origin, original)
                else:
                    self._need_external(module, name, (origin, original))
            elif is_of_user(module) and hasattr(importlib.import_module(module), name):
                message = f"{module} defines {name} by a statement that cannot be copied; define it by def, class or ="
                raise ConfigError("eject", message)
            elif name in self._parts.constants:
                self._constants.add(name)

    def _need_imported(self, module: str, origin: str, name: str) -> None:
        """Add a definition of another module that is copied. Own parts of the user get short forms of Hydrant's."""
        if is_of_user(module) and is_own(origin) and name in REPLACED:
            self._need(f"{PROGRAM}.{REPLACED[name]}", name)
        else:
            self._need(defining_module(origin, name), name)

    def _need_external(self, module: str, name: str, origin: tuple[str, str | None]) -> None:
        before = self._external.setdefault(name, origin)
        if before != origin and is_of_user(module) and _imported(before) is not _imported(origin):
            message = (
                f"{module} imports {name} from {origin[0]}, but the file has another {name}; rename it there"
            )
            raise ConfigError("eject", message)

    def _prune(self) -> None:
        """Drop what the copied definitions have and nothing uses, and give private names public ones."""
        texts = {name: entry.text for name, entry in self._entries.items()}
        bundled = {name for name, entry in self._entries.items() if entry.is_bundled}
        texts = drop_unused_methods(texts, bundled, self._inherits)
        own = {name for name in bundled if not is_of_user(self._origins[name])}
        for _ in range(2):  # attributes that are dropped leave values that are constants
            texts = drop_unused_attributes(self._specialized(texts, own), bundled)
        texts = drop_unused_parameters(drop_unused_options(texts, own), list(texts))
        if "add_gradients" in texts:
            texts["main"] = inlined(texts["main"], texts["add_gradients"]) or texts["main"]
        public = {name: name.lstrip("_") for name in texts if name.startswith("_")}
        public |= {name: _CLEARER[name] for name in texts if name in _CLEARER and name in own}
        taken = {*texts, *self._external, *(bound for text in texts.values() for bound in bound_names(text))}
        public = {name: short for name, short in public.items() if short not in taken}
        renames = {**public, **{alias: name for alias, (_, name) in self._parts.aliases.items()}}
        texts = {public.get(name, name): renamed(text, renames) for name, text in texts.items()}
        entries = {public.get(name, name): entry for name, entry in self._entries.items()}
        self._origins = {public.get(name, name): origin for name, origin in self._origins.items()}
        self._entries = {name: entries[name] for name in _reachable(texts, "main")}
        for name, entry in self._entries.items():
            entry.text = texts[name]

    def _specialized(self, texts: dict[str, str], own: set[str]) -> dict[str, str]:
        """Use constants directly in copied definitions, and add those that are computed of others."""
        changed = [name for name in texts if name in own]
        specializer = Specializer(texts, {*self._parts.constants, *self._external}, changed)
        texts, constants = specializer.texts, self._parts.constants
        for name, value in specializer.hoisted.items():
            needed = names_in(ast.parse(value))
            last = max(position for position, known in enumerate(constants) if known in needed)
            before, after = list(constants.items())[: last + 1], list(constants.items())[last + 1 :]
            hoisted = Constant(value, group=before[-1][1].group)
            constants = dict([*before, (name, hoisted), *after])
            self._constants.add(name)
        self._parts.constants = constants
        for name in changed:
            known = {**self._parts.known, **self._parts.known_in.get(name, {})}
            texts[name] = with_known_flags(_simplified(texts[name], known), known)
            texts[name] = without_returned_locals(without_defaults(texts[name]))
        return with_inlined_methods(texts, changed)

    def _inherits(self, name: str, method: str) -> bool:
        """Return whether a method of a copied class replaces one of a base class."""
        kind = getattr(importlib.import_module(self._origins[name]), name)
        return any(hasattr(base, method) for base in kind.__mro__[1:])

    def _imports(self) -> list[str]:
        used = set[str]().union(*(_names(entry.text) for entry in self._entries.values()))
        used |= set[str]().union(*(_names(self._parts.constants[name].value) for name in self._constants))
        known = {**_CONSTANT_IMPORTS, **self._external}
        needed = {name: known[name] for name in used if name in known}
        return ["from __future__ import annotations", "", *import_lines(needed)]

    def _constant_lines(self) -> str:
        lines, group = list[str](), ""
        used = set[str]().union(*(_names(entry.text) for entry in self._entries.values()))
        constants = {
            name: self._parts.constants[name] for name in self._parts.constants if name in self._constants
        }
        used |= set[str]().union(*(_names(constant.value) for constant in constants.values()))
        headings = list(dict.fromkeys(constant.group for constant in constants.values()))
        for name, constant in sorted(constants.items(), key=lambda item: headings.index(item[1].group)):
            if name not in used:
                continue
            if constant.group != group:
                group = constant.group
                lines += ["", f"# {group}"] if lines else [f"# {group}"]
            comment = f"  # {constant.comment}" if constant.comment else ""
            lines.append(f"{name} = {constant.value}{comment}")
        return "\n".join(lines) + "\n"


_CONSTANT_IMPORTS: dict[str, tuple[str, str | None]] = {
    "torch": ("torch", None),
    "Path": ("pathlib", "Path"),
    "Fraction": ("fractions", "Fraction"),
    "os": ("os", None),
    "sys": ("sys", None),
}


_CLEARER = {"mix": "hash_of", "_MIX": "MULTIPLIERS"}
"""Other names for definitions of Hydrant, in files that mix samples too."""

_OF_TORCH = {
    ("hydrant.optimizers.norms", "total_norm"): ("torch.nn.utils", "get_total_norm"),
}
"""Functions of Hydrant that are one of torch if there is one process."""


_SIMPLIFIED: dict[tuple[str, str], str] = {}


def _simplified(text: str, known: Mapping[str, Any]) -> str:
    """Return a definition with its branches decided. Results are kept, because most programs share most of them."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    names |= {"ACCUMULATES", "ROUNDS_UP"}  # decide a loop and calls
    key = text, repr({name: known[name] for name in sorted(names & known.keys())})
    if key not in _SIMPLIFIED:
        _SIMPLIFIED[key] = without_unused_locals(fold(text, known))
    return _SIMPLIFIED[key]


def _calls(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _names(text: str) -> set[str]:
    tree = ast.parse(text)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _reachable(texts: Mapping[str, str], start: str) -> list[str]:
    """Return the definitions that one needs, directly or by others, in their order in `texts`."""
    found, waiting = {start}, [start]
    while waiting:
        new = (_names(texts[waiting.pop()]) & texts.keys()) - found
        found |= new
        waiting += new
    return [name for name in texts if name in found]


def _imported(origin: tuple[str, str | None]) -> object:
    return pkgutil.resolve_name(origin[0] if origin[1] is None else f"{origin[0]}:{origin[1]}")


def _section_of(module: str) -> str:
    if module.startswith(PROGRAM):
        name = module.removeprefix(f"{PROGRAM}.")
        name = {"intervals": "schedule", "metrics": "evaluation"}.get(name, name)
        return name.partition("_")[0]  # data_images, data_tensors and so on are data
    if is_of_user(module):
        return "own"
    for section, (_, prefixes) in _SECTIONS.items():
        if any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes):
            return section
    raise AssertionError(f"no section for {module}")


def _without_module_names(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source in which `seeding.mix` is `mix`; adds the imports of these names."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        origin, original = imports.get(node.value.id, ("", None))
        if original is not None and is_own(origin) and _is_module(f"{origin}.{original}"):
            edits.append(Edit(*source.span(node), node.attr))
            imports[node.attr] = (f"{origin}.{original}", node.attr)
    return source.apply(edits).text


def _without_local_imports(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source without the imports inside its functions; adds them to those of the file."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            start, end = source.lines_of(node)
            end += source.text[end:].startswith("\n")  # the empty line after it
            edits.append(Edit(start, end, ""))
            imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return source.apply(edits).text


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
