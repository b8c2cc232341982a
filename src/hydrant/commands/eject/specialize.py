"""Use constants directly: parameters that get the same constant in every call, and attributes that are constants."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from hydrant.commands.eject.names import bound_names, is_value
from hydrant.commands.eject.prune import without_argument, without_parameter
from hydrant.commands.eject.source_edits import Edit, Source
from hydrant.commands.eject.substitute import with_value

_ROOTS = ("F", "math", "nn", "torch")
"""Modules whose attributes are constants."""


class Specializer:
    """Replaces parameters and attributes of definitions by the constants that they always are.

    >>> texts = {"f": "def f(x: int, size: int) -> int:\\n    return x * size\\n", "g": "y = f(data, size=WIDTH)\\n"}
    >>> made = Specializer(texts, {"WIDTH"}, ["f"]).texts
    >>> print(made["f"] + made["g"], end="")
    def f(x: int) -> int:
        return x * WIDTH
    y = f(data)

    Args:
        texts: the definitions by name.
        constants: the names of constants at the top of the file.
        changed: the definitions that may get other parameters.
    """

    def __init__(
        self, texts: Mapping[str, str], constants: Collection[str], changed: Collection[str]
    ) -> None:
        self.texts = dict(texts)
        self.hoisted = dict[str, str]()
        """Constants that were values inside constructors: their source by name."""
        self._constants, self._changed = set(constants), list(changed)
        blocks = [text for text in texts.values() if not is_value(text)]
        self._bound = set[str]().union(*map(bound_names, blocks))
        while self._improve():
            pass

    def _improve(self) -> bool:
        """Make one change of each kind that is possible; return whether there was any."""
        before = dict(self.texts)
        for name in self._changed:
            self._use_constant_arguments(name)
            self._use_constant_locals(name)
            self._use_constant_attributes(name)
        return self.texts != before

    def _use_constant_arguments(self, name: str) -> None:
        """Replace parameters of a function, a constructor or private methods that are the same in every call."""
        [statement] = Source(self.texts[name]).tree.body
        if isinstance(statement, ast.FunctionDef):
            self._replace_parameters(name, statement, name)
        elif isinstance(statement, ast.ClassDef):
            for method in _methods(statement):
                if method.name == "__init__":
                    self._replace_parameters(name, method, name)

    def _replace_parameters(self, owner: str, function: ast.FunctionDef, called: str) -> None:
        calls = self._calls(called)
        if not calls:
            return
        positional = [arg.arg for arg in function.args.args if arg.arg != "self"]
        assigned = {
            n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for parameter in [*positional, *(arg.arg for arg in function.args.kwonlyargs)]:
            position = positional.index(parameter) if parameter in positional else None
            values = {_argument(call, function, parameter, position) for call in calls}
            value = values.pop() if len(values) == 1 else None
            if value is None or parameter in assigned or not self._is_constant(value):
                continue
            text = with_value(self.texts[owner], function.name, parameter, value)
            if text is None:
                continue
            self.texts[owner] = without_parameter(text, parameter)
            self.texts = {
                key: without_argument(text, called, parameter, position) for key, text in self.texts.items()
            }
            return  # the positions of the others have changed

    def _calls(self, name: str) -> list[ast.Call]:
        """Return all calls of a definition; none if it is also used otherwise, or with stars."""
        calls, num_uses = list[ast.Call](), 0
        for text in self.texts.values():
            tree = ast.parse(text)
            notes = {id(n) for note in _annotations(tree) for n in ast.walk(note)}
            for node in ast.walk(tree):
                num_uses += isinstance(node, ast.Name) and node.id == name and id(node) not in notes
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                    calls.append(node)
        has_stars = any(
            isinstance(argument, ast.Starred) or getattr(argument, "arg", "") is None
            for call in calls
            for argument in (*call.args, *call.keywords)
        )
        return [] if has_stars or num_uses != len(calls) else calls

    def _is_constant(self, source: str) -> bool:
        """Return whether an expression is short and the same everywhere: a constant, or a name of this file."""
        match ast.parse(source, mode="eval").body:
            case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
                return True
            case ast.Name(id=name):
                return name in self._constants or (name in self.texts and name not in self._bound)
            case ast.Attribute(value=ast.Name(id=module)):
                return module in _ROOTS
            case ast.BinOp(
                left=ast.Name() | ast.Constant() as left, right=ast.Name() | ast.Constant() as right
            ):
                return self._is_constant(ast.unparse(left)) and self._is_constant(ast.unparse(right))
            case ast.Call(func=ast.Name(id="partial"), args=args, keywords=words):
                return all(
                    self._is_constant(ast.unparse(part)) for part in (*args, *(w.value for w in words))
                )
            case _:
                return False

    def _use_constant_locals(self, name: str) -> None:
        """Use constants for values inside a constructor that are computed from constants alone."""
        source = Source(self.texts[name])
        method = _constructor(source)
        for statement in method.body if method is not None else ():
            match statement:
                case ast.Assign(targets=[ast.Name(id=local)], value=value):
                    pass
                case _:
                    continue
            constant, text = local.upper(), source.text_of(value)
            assert method is not None
            stores = [n for n in ast.walk(method) if isinstance(n, ast.Name) and n.id == local]
            if sum(isinstance(n.ctx, ast.Store) for n in stores) != 1:
                continue
            is_number = isinstance(value, ast.BinOp) and self._is_arithmetic(value)
            if (is_number and constant in self._constants) or not (is_number or self._is_constant(text)):
                continue
            whole = source.apply([Edit(*source.lines_of(statement), "")]).text
            changed = with_value(whole, "__init__", local, constant if is_number else text)
            if changed is None:
                continue
            self.texts[name] = changed
            if is_number:
                self.hoisted[constant] = text
                self._constants.add(constant)
            return

    def _is_arithmetic(self, value: ast.expr) -> bool:
        """Return whether an expression computes a number from constants and numbers."""
        names = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
        kinds = (
            ast.BinOp,
            ast.Name,
            ast.Constant,
            ast.operator,
            ast.Load,
            ast.Call,
            ast.Attribute,
            ast.UnaryOp,
        )
        are_known = all(isinstance(n, (*kinds, ast.unaryop)) for n in ast.walk(value))
        return are_known and all(name in self._constants or name == "math" for name in names)

    def _use_constant_attributes(self, name: str) -> None:
        """Use a constant where a class keeps it as an attribute of its own."""
        source = Source(self.texts[name])
        method = _constructor(source)
        for target, value in _assigned(method):
            if not (target.attr.startswith("_") and self._is_constant(source.text_of(value))):
                continue
            nodes = [
                (key, n)
                for key, text in self.texts.items()
                for n in ast.walk(ast.parse(text))
                if isinstance(n, ast.Attribute) and n.attr == target.attr
            ]
            stores = [key for key, n in nodes if isinstance(n.ctx, ast.Store)]
            are_own = all(isinstance(n.value, ast.Name) and n.value.id == "self" for _, n in nodes)
            num_own = sum(key == name for key, _ in nodes)
            if (
                stores.count(name) != 1
                or not are_own
                or any(key not in stores for key, _ in nodes)
                or num_own == 1
            ):
                continue
            edits = [
                Edit(*source.span(n), source.text_of(value))
                for n in ast.walk(source.tree)
                if isinstance(n, ast.Attribute) and n.attr == target.attr and isinstance(n.ctx, ast.Load)
            ]
            self.texts[name] = source.apply(edits).text
            return


def _methods(statement: ast.ClassDef) -> list[ast.FunctionDef]:
    return [part for part in statement.body if isinstance(part, ast.FunctionDef)]


def _constructor(source: Source) -> ast.FunctionDef | None:
    """Return the constructor of the class that a source defines, if there is one."""
    [statement] = source.tree.body
    methods = _methods(statement) if isinstance(statement, ast.ClassDef) else []
    return next((method for method in methods if method.name == "__init__"), None)


def _annotations(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        notes = (getattr(node, "annotation", None), getattr(node, "returns", None))
        yield from (note for note in notes if note is not None)


def _argument(call: ast.Call, function: ast.FunctionDef, name: str, position: int | None) -> str | None:
    """Return the source of an argument of a call: what is passed, else the default; None if there is neither."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return ast.unparse(keyword.value)
    if position is not None and position < len(call.args):
        return ast.unparse(call.args[position])
    args = function.args
    defaults = dict(zip((arg.arg for arg in args.kwonlyargs), args.kw_defaults, strict=True))
    defaults |= {a.arg: d for a, d in zip(reversed(args.args), reversed(args.defaults), strict=False)}
    default = defaults.get(name)
    return None if default is None else ast.unparse(default)


def _assigned(method: ast.FunctionDef | None) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes of `self` that a constructor sets, with their values."""
    for statement in method.body if method is not None else ():
        match statement:
            case ast.Assign(targets=[target], value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pass
            case _:
                continue
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        for left, right in pairs:
            if (
                isinstance(left, ast.Attribute)
                and isinstance(left.value, ast.Name)
                and left.value.id == "self"
            ):
                yield left, right
