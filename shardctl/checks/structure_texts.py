"""The texts of a difference in structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.findings import ERROR, WARNING, Rule, Rules
from shardctl.checks.structure_groups import RELATIONS
from shardctl.ids.generator import quote_identifier

if TYPE_CHECKING:
    from shardctl.checks.findings import Finding
    from shardctl.checks.structure_groups import Difference, Thing
    from shardctl.topology.model import Topology

_HARMLESS = frozenset({"table", "view", "sequence", "index"})
"""Kinds whose extra ones change no statement that works in the other shards."""
_OTHERS = ("column", "constraint", "trigger")
_TEXTS = ("{actual}", "{expected}", "{hint}")
OF_THINGS = Rules(
    "structure",
    {
        f"{kind}_{change}": Rule(
            WARNING if change == "extra" and kind in _HARMLESS else ERROR, *_TEXTS
        )
        for kind in (*sorted(_HARMLESS), *_OTHERS)
        for change in ("missing", "extra", "differs")
    }
    | dict.fromkeys(("owner_differs", "grant_differs"), Rule(ERROR, *_TEXTS)),
)


def finding(topology: Topology, difference: Difference) -> Finding:
    """Name which shards differ, in what, and how to fix it."""
    key = difference.key
    if key.kind in {"grant", "owner"}:
        change = "differs"
    elif difference.actual is None:
        change = "missing"
    else:
        change = "extra" if difference.expected is None else "differs"
    return OF_THINGS.finding(
        f"{key.kind}_{change}",
        shards=difference.shards,
        object=_name(difference),
        actual=_described(difference, difference.actual),
        expected=_described(difference, difference.expected),
        hint=_hint(topology, difference, change),
    )


def _name(difference: Difference) -> str:
    """Name a relation or index by its name, and parts of a table with the table's."""
    key = difference.key
    if key.kind in RELATIONS or key.kind == "index" or not key.name:
        return key.name or key.relation
    return f"{key.relation}.{key.name}"


def _described(difference: Difference, thing: Thing | None) -> str:
    if thing is None:
        return "nothing granted" if difference.key.kind == "grant" else "absent"
    return " ".join(thing.description.split())


def _hint(topology: Topology, difference: Difference, change: str) -> str:  # noqa: C901  # a table
    """Name the statement that fixes it, or where to see what it should be."""
    key, expected = difference.key, difference.expected
    table = quote_identifier(key.relation)
    name = quote_identifier(key.name)
    what = "MATERIALIZED VIEW" if _is_materialized(difference) else key.kind.upper()
    on = "" if key.kind in RELATIONS or key.kind == "index" else table
    statement: str | None = None
    if key.kind == "grant":
        statement = f"GRANT or REVOKE ... ON {table}"
    elif key.kind == "owner" and expected is not None:
        statement = f"ALTER TABLE {table} OWNER TO {quote_identifier(expected.description)}"
    elif change == "extra":
        statement = {
            "column": f"ALTER TABLE {table} DROP COLUMN {name}",
            "constraint": f"ALTER TABLE {table} DROP CONSTRAINT {name}",
            "trigger": f"DROP TRIGGER {name} ON {on}",
        }.get(key.kind, f"DROP {what} {name}")
        if key.kind in {"table", "column"}:
            statement = (
                f"rename it back if it was renamed; if you do not need its data, {statement}"
            )
        statement += ", or write a migration that creates it in all shards (`shardctl migrate`)"
    elif expected is not None and key.kind == "column":
        statement = f"ALTER TABLE {table} {_column_changes(name, difference.actual, expected)}"
    elif expected is not None and key.kind == "constraint":
        statement = f"ALTER TABLE {table} ADD CONSTRAINT {name} {expected.description}"
    elif expected is not None and key.kind in {"index", "trigger"}:
        statement = expected.description
        if change == "differs" and key.kind == "index" and _is_invalid(difference):
            statement = f"REINDEX INDEX CONCURRENTLY {name}"
    if statement is None:
        model = f"{quote_identifier(topology.schema(difference.model))}.{name}"
        return (
            f"restore it from a backup; `pg_dump --schema-only --table='{model}'` on "
            f"node {topology.owners()[difference.model]} shows its definition"
        )
    if change == "differs" and key.kind in {"constraint", "trigger"}:
        statement = f"drop it, then {statement}"
    return f"with search_path set to each shard's schema: {statement}"


def _column_changes(name: str, actual: Thing | None, expected: Thing) -> str:
    """Write what makes one column the other; identity and generation are left to people."""
    if actual is None:
        return f"ADD COLUMN {name} {expected.description}"
    before, after = (thing.description.removeprefix(thing.core) for thing in (actual, expected))
    changes = []
    if actual.core != expected.core:
        changes.append(f"TYPE {expected.core}")
    required = " NOT NULL"
    if before.startswith(required) != after.startswith(required):
        changes.append("SET NOT NULL" if after.startswith(required) else "DROP NOT NULL")
    before, after = before.removeprefix(required), after.removeprefix(required)
    if before != after:
        if after.startswith(" DEFAULT "):
            changes.append(f"SET{after}")
        elif before.startswith(" DEFAULT ") and not after:
            changes.append("DROP DEFAULT")
        else:
            changes.append("... (identity or generation differs)")
    return ", ".join(f"ALTER COLUMN {name} {change}" for change in changes)


def _is_materialized(difference: Difference) -> bool:
    thing = difference.actual or difference.expected
    return thing is not None and thing.description.startswith("MATERIALIZED")


def _is_invalid(difference: Difference) -> bool:
    both = (difference.actual, difference.expected)
    return [t is not None and t.description.endswith("(INVALID)") for t in both] == [True, False]
