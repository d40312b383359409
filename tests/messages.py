"""Write tests/unit/messages.txt, what errors, findings and preflight say.

Tests assert codes and data. A message or hint that is worded otherwise is a line in a diff of that
file, to be read before it is committed. `…` stands for what differs from one to the next.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import shardctl
from shardctl.moves.preflight import table
from tests import reference_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILE = Path(__file__).parent / "unit" / "messages.txt"


def render() -> str:
    """Give the texts of each file that has some, in their order."""
    kinds = {
        *reference_errors.classes(),
        *("incomplete_if", "Rule", "Problem", "BadParameter", "StatementRefused"),
    }
    said = {"moves/preflight/*.sql": list(_of_preflight())}
    root = Path(shardctl.__path__[0])
    for file in sorted(root.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        values = {
            one.targets[0].id: one.value
            for one in tree.body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }
        said[str(file.relative_to(root))] = [
            text for call in _calls(tree, kinds) for text in _texts(call, values)
        ]
    return "\n".join(
        "\n    ".join((file, *texts)) + "\n" for file, texts in sorted(said.items()) if texts
    )


def _of_preflight() -> Iterator[str]:
    for check in table.CHECKS:
        for of_method in check.said.values():
            for one in of_method.values():
                yield from filter(None, (one.says, one.hint))


def _calls(node: ast.AST, kinds: set[str], *, within: bool = False) -> Iterator[ast.Call]:
    """Give calls that make one of these; `super().__init__` within an error makes one, too."""
    if isinstance(node, ast.ClassDef):
        within = node.name in kinds
    if isinstance(node, ast.Call):
        name = reference_errors.last_name(node.func)
        if name in kinds or (within and name == "__init__"):
            yield node
            return
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, kinds, within=within)


def _texts(node: ast.AST, values: Mapping[str, ast.expr]) -> Iterator[str]:
    """Give the texts of some words in a call, also those that the file has given a name."""
    if isinstance(node, ast.Name):
        if node.id in values:
            yield from _texts(values[node.id], {})
    elif isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and (
        " " in (text := " ".join(reference_errors.said(node).split()))
    ):
        yield text
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child, values)


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
