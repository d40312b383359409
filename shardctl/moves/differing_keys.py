"""The keys of rows that differ between two copies of a table, found without reading all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.meter import SHOWN, listed
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.moves.comparison import Asked, Table
    from shardctl.moves.confirm_sessions import Sessions
    from shardctl.topology.model import NodeName

QUERIES = queries.load("shardctl.moves", "rehearsal.sql")

_ROWS = 256
"""About how many rows a group of keys has."""
_BITS = 16


def described(sessions: Sessions, asked: Asked, table: Table, rows: int) -> str:
    """Name the first keys that only one node has, and those whose rows differ.

    `rows` is about how many rows the table has; empty where the table has no key.
    """
    plan = sessions.context.plan
    source, target = plan.source, plan.target
    place = sql.Identifier(table.on_source, table.name).as_string(asked[source][0])
    about = f"table {table} or a system catalog"
    found = sessions.ask(
        source,
        asked[source][0],
        QUERIES["key"].format(table=sql.Literal(place)),
        about=about,
    )
    if not found:
        return ""
    columns = [sql.SQL("t.{}").format(sql.Identifier(name)) for (name,) in found]
    key = sql.SQL("ROW({})").format(sql.SQL(", ").join(columns))
    mask = (1 << min(_BITS, max(0, (rows // _ROWS).bit_length()))) - 1

    def ask(node: NodeName, name: str, **more: sql.Composable) -> set[tuple[object, ...]]:
        query = QUERIES[name].format(
            key=key,
            row_hash=table.row(),
            key_hash=table.row([name for (name,) in found]),
            mask=sql.Literal(mask),
            schema=sql.Identifier(table.schema if node == target else table.on_source),
            table=sql.Identifier(table.name),
            **more,
        )
        with sessions.context.on(node):
            return set(sessions.ask(node, asked[node][0], query, about=about))

    groups = {number for number, *_ in ask(source, "groups") ^ ask(target, "groups")}
    some = sql.Literal(sorted(groups, key=str)[:SHOWN])
    here, there = _sums(ask(source, "rows", groups=some)), _sums(ask(target, "rows", groups=some))
    names = [name for (name,) in found]
    return _said(source, target, ", ".join(names), here, there)


def _sums(rows: set[tuple[object, ...]]) -> dict[object, object]:
    return {key: total for key, total in rows}  # noqa: C416  # mypy does not see pairs otherwise


def _said(
    source: NodeName,
    target: NodeName,
    columns: str,
    here: Mapping[object, object],
    there: Mapping[object, object],
) -> str:
    """Write it for people.

    >>> _said("a", "b", "id", {"(1)": 1, "(2)": 2, "(3)": 3}, {"(2)": 2, "(3)": 4, "(5)": 5})
    'key (id): (1) only on a, (5) only on b, (3) differs'
    """
    parts = [
        *(f"{key} only on {source}" for key in sorted(here.keys() - there.keys(), key=str)),
        *(f"{key} only on {target}" for key in sorted(there.keys() - here.keys(), key=str)),
        *(
            f"{key} differs"
            for key in sorted(here.keys() & there.keys(), key=str)
            if here[key] != there[key]
        ),
    ]
    return f"key ({columns}): {listed(parts)}" if parts else ""
