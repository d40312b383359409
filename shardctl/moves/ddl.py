"""The structure of shards: what it was when a stream copied it, and what binds it to other schemas.

A stream carries rows and no DDL: what is made or altered after the copy is never on the target. So
the source keeps what it was. Dependencies between moved and other schemas are by OID: a fence stops
only access by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from shardctl.access import structure_digest
from shardctl.access.structure_digest import StructureChanged
from shardctl.meter import SHOWN, listed
from shardctl.moves.plan import SourceUnfit
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

    Parts = Sequence[dict[str, str]]
    """Of each schema, in order, its objects, and a digest of each."""

QUERIES = queries.load("shardctl.moves", "ddl.sql")


def note(context: MoveContext) -> None:
    """Write down what the structure on the source is, before it is copied; repeatable."""
    plan = context.plan
    with context.using(plan.source) as session:
        # In this order: what changes in between is a change.
        digest = structure_digest.digest(session, plan.schemas)
        note = Jsonb({"digest": digest, "parts": parts(session, plan.schemas)})
        session.execute(QUERIES["note"], {"move": plan.id, "note": note})
    context.structure = digest


def parts(session: Connection, schemas: Sequence[str]) -> Parts:
    """Sum up each object of some schemas, in their order."""
    return [*structure_digest.parts(session, schemas).values()]


def changes(
    noted: Parts,
    session: Connection,
    schemas: Sequence[str],
    *,
    named: Sequence[str],
    rights: bool = True,
) -> list[str]:
    """Name the objects that are not what was noted, in schemas that were `named` like that then.

    Without `rights`, those to the schemas themselves may have changed.
    """
    before = {name: dict(objects) for name, objects in zip(named, noted, strict=True)}
    after = structure_digest.parts(session, schemas)
    if not rights:
        for one in (*before.values(), *after.values()):
            one.pop("", None)
    return list(structure_digest.changes(before, after))


def noted(session: Connection, move: str) -> tuple[str, Parts | None]:
    """Give what the structure was when a move copied it: its digest, and its parts."""
    row = session.execute(QUERIES["noted"], {"move": move}).fetchone()
    return row or ("", None)


def require_same(context: MoveContext, schemas: Sequence[str]) -> None:
    """See that it is what was copied, under the names of the moment; raises StructureChanged."""
    with context.using(context.plan.source) as session:
        require(context, structure_digest.digest(session, schemas), schemas)


def require(context: MoveContext, digest: str, schemas: Sequence[str]) -> None:
    """See that a digest is that of what was copied; raises StructureChanged."""
    plan = context.plan
    with context.using(plan.source) as session:
        if context.structure is None:
            context.structure, _ = noted(session, plan.id)
        if digest != context.structure:
            _, before = noted(session, plan.id)
            changed = changes(before, session, schemas, named=plan.schemas) if before else []
            raise StructureChanged(plan.source, plan.id, changed)


def tell_overtaken(context: MoveContext, changed: Sequence[str]) -> None:
    """Report DDL on the source that has come too late for the target."""
    if changed:
        context.notice(
            f"node {context.plan.source}: sessions committed DDL on the moved shards after the "
            f"cutover, which node {context.plan.target} does not have: {listed(changed)}; run it "
            "there again"
        )


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
    return some([(f"{what} (on {to})", total) for what, to, total in rows])


def require_uncrossed(session: Connection, plan: MovePlan, staying: Sequence[str]) -> None:
    """Check that no other schema depends on the fenced ones; raises SourceUnfit."""
    if (found := dependencies(session, plan.retired, staying)).total:
        raise crossing_refused(plan.source, found)


def crossing_refused(node: NodeName, found: Some) -> SourceUnfit:
    """Return the refusal of a source with such dependencies."""
    return SourceUnfit(
        node,
        "crossing",
        f"{found.total} objects have cross-schema dependencies, which bypass a fence: {found}",
        hint="drop them, or rewrite them in plpgsql, which finds tables by name: a fence stops "
        "only access by name; a temporary object goes when its session ends",
    )
