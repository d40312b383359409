"""Dependencies between moved and other schemas by OID: a fence stops only access by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.meter import SHOWN, listed
from shardctl.moves.refusals import SourceUnfit
from shardctl.postgres import blocking, queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

QUERIES = queries.load("shardctl.moves", "cross_schema.sql")


@dataclass(frozen=True, slots=True)
class Some:
    """The first of many names, and how many there are in all."""

    names: tuple[str, ...] = ()
    total: int = 0

    def __str__(self) -> str:
        return listed(self.names, self.total)


def some(rows: Sequence[tuple[str, int]]) -> Some:
    """Make it from rows of a name and the total."""
    return Some(tuple(name for name, _ in rows), rows[0][1] if rows else 0)


def dependencies(session: Connection, moved: Sequence[str], staying: Sequence[str]) -> Some:
    """List dependencies between moved and other schemas, by OID."""
    given = {"moved": list(moved), "staying": list(staying), "shown": SHOWN}
    rows = session.execute(QUERIES["dependencies"], given).fetchall()
    return some(
        [(f"{blocking.with_session(session, what)} (on {to})", total) for what, to, total in rows]
    )


def require_uncrossed(session: Connection, plan: MovePlan, staying: Sequence[str]) -> None:
    """Check that no other schema depends on the fenced ones; raises SourceUnfit."""
    if (found := dependencies(session, plan.retired, staying)).total:
        raise refusal(plan.source, found)


def refusal(node: NodeName, found: Some) -> SourceUnfit:
    """Return the refusal of a source with such dependencies."""
    return SourceUnfit(
        node,
        "crossing",
        f"{found.total} objects have cross-schema dependencies, which bypass a fence: {found}",
        hint="drop them, or rewrite them in plpgsql, which finds tables by name: a fence stops "
        "only access by name; a temporary object goes when its session ends",
    )
