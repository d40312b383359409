"""What is bound across the borders of moved schemas, by more than names: a fence binds names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.moves.refusals import SHOWN, SourceUnfit, listed
from shardctl.postgres import queries

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
    """Make it of rows of a name and the number of all."""
    return Some(tuple(name for name, _ in rows), rows[0][1] if rows else 0)


def dependencies(session: Connection, moved: Sequence[str], staying: Sequence[str]) -> Some:
    """List what is bound across the borders of moved schemas by more than names."""
    given = {"moved": list(moved), "staying": list(staying), "shown": SHOWN}
    rows = session.execute(QUERIES["dependencies"], given).fetchall()
    return some([(f"{what} (on {to})", total) for what, to, total in rows])


def require_uncrossed(session: Connection, plan: MovePlan, staying: Sequence[str]) -> None:
    """See that nothing is bound to the moved schemas behind the fence; raises SourceUnfit."""
    if (found := dependencies(session, plan.retired, staying)).total:
        raise refusal(plan.source, found)


def refusal(node: NodeName, found: Some) -> SourceUnfit:
    """Refuse a source for them."""
    return SourceUnfit(
        node,
        "crossing",
        f"{found.total} objects are bound across the border of the shards' schemas, "
        f"by more than names: {found}",
        hint="drop them, or write them so that they name tables in texts (plpgsql): a fence "
        "binds names, and these would write behind it",
    )
