"""Write docs/reference/errors.md from the errors and where they are raised."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardctl
from shardctl import errors
from shardctl.errors import Problems, ShardctlError
from shardctl.moves.preflight import table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"

_HEAD = """\
# Errors by code

<!-- Written by `make docs` from the errors themselves: do not edit. -->

Every error has a `code`, which `-o json` gives beside `message` and `hint`
([json.md](json.md#errors)).
Codes are for programs: a code keeps its meaning, while the words of a message may change.
`…` stands for what differs from one error to the next.
[Exit codes](exit-codes.md) have a page of their own.

| code | exit code | the error |
|---|---|---|
"""


def render() -> str:
    """Compose the page of error codes: what is raised with a code of its own, then classes."""
    known = classes()
    rows = {
        (one.code, str(one.exit_code), inspect.cleandoc(one.__doc__ or "").splitlines()[0])
        for one in known.values()
        if _code_at(one) is None and one is not Problems
    }
    called: dict[str, Callable[..., Any]] = {**known, "incomplete_if": errors.incomplete_if}
    places = {name: (kind, _code_at(kind)) for name, kind in called.items()}
    for file in sorted(Path(shardctl.__path__[0]).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        reports = {node: said for one in nodes for node, said in _reported(one)}
        # Inner functions come later, so each node has the innermost one around it.
        around = {node: f for f in nodes if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            kind, at = places.get(last_name(node.func), (None, None))
            if at is not None:
                code, message = node.args[at : at + 2]
                exits = str(getattr(kind, "exit_code", "1 or 3"))
                rows |= {
                    (one, exits, reports.get(node) or told)
                    for one, told in _codes(code, message, around.get(node), nodes)
                }
    rows |= {
        (one.code, "1", re.sub(r"{\w+}", "…", one.says))
        for check in table.CHECKS
        for of_method in check.said.values()
        for one in of_method.values()
        if one.hint is not None
    }
    lines = [f"| `{code}` | {exits} | {_cell(said)} |\n" for code, exits, said in sorted(rows)]
    return _HEAD + "".join(lines)


def classes() -> dict[str, type[ShardctlError]]:
    """Give all errors of shardctl by the names of their classes."""
    for found in pkgutil.walk_packages(shardctl.__path__, "shardctl."):
        # Django's models want settings; the errors of contrib are apart from them.
        django = found.name.startswith("shardctl.contrib.django.")
        if not found.name.endswith("__main__") and (not django or found.name.endswith(".errors")):
            importlib.import_module(found.name)
    return {one.__name__: one for one in _subclasses(ShardctlError)}


def _codes(
    code: ast.expr, message: ast.expr, function: ast.FunctionDef | None, file: list[ast.AST]
) -> Iterator[tuple[str, str]]:
    """Give all codes that an argument may be, itself or what its name stands for, and messages."""
    if isinstance(code, ast.Constant) and isinstance(code.value, str):
        yield code.value, said(message)
    elif isinstance(code, ast.IfExp):
        for one in (code.body, code.orelse):
            yield from _codes(one, message, function, file)
    elif isinstance(code, ast.Name) and function is not None:
        for given in _given(code.id, function, file):
            told = said(message)
            if len(given) > 1 and not any(map(str.isalpha, told)):  # it is given with the code
                told = said(given[1])
            yield from ((one, told) for one, _ in _codes(given[0], message, None, file))


def _given(name: str, function: ast.FunctionDef, file: list[ast.AST]) -> Iterator[list[ast.expr]]:
    """Give the values of a name of a function, each with what is beside it there."""
    parameters = [one.arg for one in function.args.args]
    if name in parameters:
        for call in file:
            if isinstance(call, ast.Call) and last_name(call.func) == function.name:
                yield call.args[parameters.index(name) :]
    for one in ast.walk(function):
        if isinstance(one, ast.For) and isinstance(one.iter, ast.Tuple):
            target, rows = one.target, one.iter.elts
        elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Subscript):
            dicts = (n for n in ast.walk(function) if isinstance(n, ast.Dict))
            target, rows = one.targets[0], [value for n in dicts for value in n.values]
        else:
            continue
        names = [last_name(n) for n in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if name in names:
            for row in rows:
                yield row.elts[names.index(name) :] if isinstance(row, ast.Tuple) else [row]


def _subclasses(of: type[ShardctlError]) -> Iterator[type[ShardctlError]]:
    yield of
    for one in of.__subclasses__():
        yield from _subclasses(one)


def _reported(function: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Give all of a function that builds an error with what its docstring says of that."""
    doc = ast.get_docstring(function) or "" if isinstance(function, ast.FunctionDef) else ""
    said = doc.splitlines()[0].removeprefix("Report ") if doc.startswith("Report ") else ""
    within = ast.walk(function) if said else ()
    return ((node, said[0].upper() + said[1:]) for node in within)


def last_name(called: ast.expr) -> str:
    """Give the name that is called, without the module that it is in."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _code_at(kind: Callable[..., Any]) -> int | None:
    """Tell at which place errors of a class are given their code; None: it has one itself."""
    given = list(inspect.signature(kind).parameters)
    return given.index("code") if "code" in given else None


def said(node: ast.expr) -> str:
    """Write what a message says, without what differs from one to the next."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(said, node.values))
    if isinstance(node, ast.BinOp):
        return said(node.left) + said(node.right)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.List):
        return said(node.args[0].elts[0])  # the first of the lines that are joined
    return "…"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
