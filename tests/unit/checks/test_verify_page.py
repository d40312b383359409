"""docs/verify.md and the registry are in step: sections, sentences, codes and severities.

The codes are read from the source: the second argument of every `Finding(...)`, followed
through conditional expressions, loops over tuples, assignments, and the calls of helpers. What
cannot be followed so must stand in CODES or SEVERITIES below, or the test fails.
"""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

from shardctl import checks
from shardctl.checks import ids, ids_odd, settings, structure_texts
from shardctl.checks.findings import Severity
from shardctl.checks.registry import CHECKS
from shardctl.checks.structure_groups import RELATIONS, Difference, Key, Thing
from shardctl.topology.loader import load
from shardctl.topology.model import ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "verify.md"
FOLDER = Path(checks.__file__).parent

Pair = tuple[str, str]
"""A code and a severity that it can have."""

SHARED = {"registers": "generator"}
"""Modules that speak for a check whose name is not the beginning of theirs."""

EVERYWHERE = "verify"
"""The module whose findings any check with a look can have."""

EVERYWHERE_HEADING = "A check that could not be made"


class Untold(Exception):
    """An expression whose values cannot be read from the source."""


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """One module's source: its findings, and what expressions in it can be."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.tree = ast.parse(source)
        self._scope: dict[ast.AST, Function | None] = {}
        self._note(self.tree, None)

    def _note(self, node: ast.AST, scope: Function | None) -> None:
        self._scope[node] = scope
        inner = node if isinstance(node, Function) else scope
        for child in ast.iter_child_nodes(node):
            self._note(child, inner)

    def calls(self, name: str) -> list[ast.Call]:
        """List the calls of a function, by itself or as a module's attribute."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and name in {getattr(node.func, "id", None), getattr(node.func, "attr", None)}
        ]

    def pairs(self) -> set[Pair]:
        """Give every code that a finding made here can have, with its severities."""
        found: set[Pair] = set()
        for call in self.calls("Finding"):
            code, severity = (argument(call, n, k) for n, k in ((1, "code"), (2, "severity")))
            where = f"{self.name}.{getattr(self._scope[call], 'name', '')}: {ast.unparse(code)}"
            if where in CODES:
                found |= CODES[where](self)
            else:
                found |= self._together(code, severity, where)
        return found

    def _together(self, code: ast.expr, severity: ast.expr, where: str) -> set[Pair]:
        if (
            isinstance(code, ast.IfExp)
            and isinstance(severity, ast.IfExp)
            and ast.dump(code.test) == ast.dump(severity.test)
        ):
            return self._together(code.body, severity.body, where) | self._together(
                code.orelse, severity.orelse, where
            )
        try:
            values = self.values(code)
        except Untold as untold:
            pytest.fail(f"{where}: cannot be read from the source ({untold}); add it to CODES")
        try:
            severities = self.values(severity)
        except Untold as untold:
            if not values <= SEVERITIES.keys():
                pytest.fail(f"{where}: its severity is unclear ({untold}); add it to SEVERITIES")
            return {(value, one) for value in values for one in SEVERITIES[value]}
        return set(product(values, severities))

    def values(self, expression: ast.expr) -> set[str]:
        """Give the texts that an expression can be; raises Untold."""
        match expression:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.Attribute(value=ast.Name(id="Severity"), attr=name):
                return {name}
            case ast.IfExp(body=body, orelse=orelse):
                return self.values(body) | self.values(orelse)
            case ast.Name():
                return set().union(*(self.values(one) for one in self._bound(expression)))
        raise Untold(ast.unparse(expression))

    def _bound(self, name: ast.Name) -> list[ast.expr]:
        """List the expressions to which a local name or parameter is bound."""
        scope = self._scope[name]
        if scope is None:
            raise Untold(f"{name.id} is no local name")
        found = self._passed(scope, name.id)
        for node in ast.walk(scope):
            found += assigned(node, name.id)
        if not found:
            raise Untold(f"{name.id} is bound nowhere")
        return found

    def _passed(self, scope: Function, name: str) -> list[ast.expr]:
        """List what the calls of a function give for a parameter; nothing where it is none."""
        positional = [one.arg for one in [*scope.args.posonlyargs, *scope.args.args]]
        if name not in [*positional, *(one.arg for one in scope.args.kwonlyargs)]:
            return []
        position = positional.index(name) if name in positional else None
        given = [argument(call, position, name, scope) for call in self.calls(scope.name)]
        if not given:
            raise Untold(f"{scope.name} is called nowhere in its module")
        return given


def assigned(node: ast.AST, name: str) -> list[ast.expr]:
    """List the expressions that a statement binds to a name; raises Untold."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [one for target in targets for one in picked(target, name, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return picked(target, name, value)
        case ast.For(target=target, iter=ast.Tuple(elts=elements) | ast.List(elts=elements)):
            return [one for element in elements for one in picked(target, name, element)]
        case (
            ast.For(target=target)
            | ast.comprehension(target=target)
            | ast.NamedExpr(target=target)
            | ast.AugAssign(target=target)
        ) if holds(target, name):
            raise Untold(f"{name} is bound by {type(node).__name__}")
    return []


def argument(
    call: ast.Call, position: int | None, keyword: str, callee: Function | None = None
) -> ast.expr:
    """Give a call's argument, by position, keyword, or the callee's default; raises Untold."""
    if position is not None and position < len(call.args):
        if any(isinstance(one, ast.Starred) for one in call.args[: position + 1]):
            raise Untold(ast.unparse(call))
        return call.args[position]
    for one in call.keywords:
        if one.arg == keyword:
            return one.value
    if callee is not None:
        given = callee.args
        names = [one.arg for one in [*given.posonlyargs, *given.args]]
        both = zip(reversed(names), reversed(given.defaults), strict=False)
        defaults: dict[str, ast.expr | None] = dict(both)
        defaults |= zip((one.arg for one in given.kwonlyargs), given.kw_defaults, strict=True)
        if (default := defaults.get(keyword)) is not None:
            return default
    raise Untold(f"{keyword} of {ast.unparse(call)}")


def holds(target: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(target))


def picked(target: ast.expr, name: str, value: ast.expr) -> list[ast.expr]:
    """Give the part of `value` that an assignment to `target` binds to the name; or nothing."""
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if not holds(target, name):
        return []
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        both = zip(target.elts, value.elts, strict=True)
        return [one for part, from_ in both for one in picked(part, name, from_)]
    raise Untold(f"{ast.unparse(target)} = {ast.unparse(value)}")


def of_the_generators_keys(module: Module) -> set[Pair]:
    """Group keys of what is wrong in shards are tuples of five texts; the code comes first."""
    found: set[Pair] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Tuple) and len(node.elts) == 5 and isinstance(node.ctx, ast.Load):
            match node.elts[0]:
                case ast.Constant(value=str(text)):
                    found.add((text, "error"))
                case ast.Name(id="str"):
                    pass  # the type of such a key
                case other:
                    pytest.fail(f"generator: {ast.unparse(other)} is no literal code")
    return found


def of_the_ids_kinds(_: Module) -> set[Pair]:
    """Kinds of odd ids stand in a table by code."""
    assert set(ids._KINDS) == set(get_args(ids_odd.Code))
    return {(code, kind.severity.value) for code, kind in ids._KINDS.items()}


def of_the_settings_rules(_: Module) -> set[Pair]:
    """Parameters with one right value stand in a table."""
    return {(rule.code, rule.severity.value) for rule in settings._RULES}


def of_the_structures_kinds(_: Module) -> set[Pair]:
    """Codes are made of a thing's kind, which the SQL says, and of how it differs."""
    sql = (FOLDER / "structure.sql").read_text(encoding="utf-8")
    kinds = set(re.findall(r"'([a-z]+)',\s+(?:\w\.)?relname\b", sql)) | RELATIONS
    # Each part of the union has a kind, but for the first, which has the relations'.
    objects = sql.partition("-- name: objects")[2].partition("-- name:")[0]
    assert len(kinds - RELATIONS) == len(re.findall(r"(?m)^UNION ALL$", objects))
    topology = load(ROOT / "topology.yaml")
    found: set[Pair] = set()
    for kind in kinds:
        one, other = (Thing(kind, "t", "x", "", text) for text in ("one", "other"))
        for actual, expected in ((None, one), (one, None), (one, other)):
            difference = Difference(
                Key(kind, "t", "x"), actual, expected, shards=(ShardId(1),), model=ShardId(0)
            )
            finding = structure_texts.finding("structure", topology, difference)
            found.add((finding.code, finding.severity.value))
    return found


CODES: dict[str, Callable[[Module], set[Pair]]] = {
    "generator.judge: code": of_the_generators_keys,
    "ids.judge: code": of_the_ids_kinds,
    "settings.judge: rule.code": of_the_settings_rules,
    "structure_texts.finding: f'{key.kind}_{change}'": of_the_structures_kinds,
}
"""Findings whose code is no literal, as `module.function: expression`, and who knows them."""

SEVERITIES: dict[str, Sequence[str]] = {
    "skew": ("warning", "error"),
    "skew_between": ("warning", "error"),
    "skew_here": ("warning", "error"),
}
"""Codes whose severity is calculated."""


def modules() -> dict[str, str]:
    """Read the sources of `shardctl.checks` by the modules' names."""
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.py"))}


def owner(module: str) -> str | None:
    """Name the check for which a module speaks; None: for none, or for all."""
    return SHARED.get(module) or next(
        (name for name in CHECKS if module == name or module.startswith(f"{name}_")), None
    )


def produced(check: str | None) -> set[Pair]:
    """Give what the modules of a check can find; None stands for the module of all checks."""
    found: set[Pair] = set()
    for name, source in modules().items():
        if (name == EVERYWHERE) if check is None else (owner(name) == check):
            found |= Module(name, source).pairs()
    return found


def sections() -> dict[str, list[str]]:
    """Cut the page at its headings of the second level."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line.removeprefix("## "), [])
        else:
            lines.append(line)
    return found


def rows(section: Iterable[str]) -> Iterator[list[str]]:
    """Give the cells of a section's table of codes."""
    for line in section:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield cells


def written(section: Iterable[str]) -> set[Pair]:
    """Give codes and severities as a table says them."""
    return {
        (code.strip("`"), severity)
        for code, severities, *_ in rows(section)
        for severity in severities.split(" or ")
    }


def test_every_check_has_its_section_in_the_registrys_order() -> None:
    titles = list(sections())
    assert titles[-len(CHECKS) :] == list(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_section_begins_with_what_the_check_is_about(check: str) -> None:
    about = CHECKS[check].about
    first = next(line for line in sections()[check] if line)
    assert first == f"{about[0].upper()}{about[1:]}."


@pytest.mark.parametrize("check", CHECKS)
def test_a_sections_table_has_every_code_with_its_severity_and_no_other(check: str) -> None:
    assert written(sections()[check]) == produced(check)


def test_what_any_check_can_find_is_told_once() -> None:
    assert written(sections()[EVERYWHERE_HEADING]) == produced(None)
    assert produced(None) == {("not_examined", "error")}
    mute = [name for name, check in CHECKS.items() if check.look is None]
    named = " and ".join(f"`{name}`" for name in mute)
    have = "have" if len(mute) > 1 else "has"
    assert f"{named} {have} none" in "\n".join(sections()[EVERYWHERE_HEADING])


@pytest.mark.parametrize("check", [*CHECKS, EVERYWHERE_HEADING])
def test_every_code_has_one_row_that_says_all(check: str) -> None:
    table = list(rows(sections()[check]))
    codes = [cells[0] for cells in table]
    assert len(set(codes)) == len(codes)
    assert all(len(cells) == 4 and all(cells) for cells in table)
    assert {severity for _, severity in written(sections()[check])} <= set(Severity)


def test_every_module_that_makes_findings_is_read() -> None:
    makers = {name for name, source in modules().items() if Module(name, source).calls("Finding")}
    assert {name for name in makers if owner(name) is None} == {EVERYWHERE}
    read = {f"{name}." for name in makers}
    assert all(where.partition(".")[0] + "." in read for where in CODES)
