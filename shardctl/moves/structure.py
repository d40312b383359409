"""The structure of shards that a stream copies: what it was is kept on the source.

A stream carries rows and no DDL: what is made or altered after the copy is never on the target.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from shardctl.access import structure_digest
from shardctl.access.structure_digest import StructureChanged
from shardctl.errors import Refused
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.context import MoveContext

QUERIES = queries.load("shardctl.moves", "structure.sql")


def note(context: MoveContext) -> None:
    """Write down what the structure on the source is, before it is copied; repeatable."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        # In this order: what changes in between is a change.
        digest = structure_digest.digest(session, plan.schemas)
        parts = [[*one.items()] for one in structure_digest.parts(session, plan.schemas).values()]
        note = Jsonb({"digest": digest, "parts": parts})
        session.execute(QUERIES["note"], {"move": plan.id, "note": note})


class _Noted(str):
    """The digest of what was copied."""

    __slots__ = ()


def require_same(context: MoveContext, schemas: Sequence[str]) -> None:
    """See that it is what was copied, under the names of the moment; raises StructureChanged."""
    with context.on(context.plan.source):
        digest = structure_digest.digest(context.session(context.plan.source), schemas)
    require(context, digest, schemas)


def require(context: MoveContext, digest: str, schemas: Sequence[str]) -> None:
    """See that a digest is that of what was copied; raises StructureChanged."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)

        def read() -> _Noted:
            row = session.execute(QUERIES["noted"], {"move": plan.id}).fetchone()
            return _Noted(row[0] if row else "")

        if digest != context.own(_Noted, read):
            raise StructureChanged(plan.source, plan.id, _changes(context, schemas))


@contextmanager
def explaining(context: MoveContext) -> Iterator[None]:
    """Raise StructureChanged instead of a refusal where DDL on the source is the reason."""
    try:
        yield
    except Refused:
        require_same(context, context.plan.schemas)
        raise


def _changes(context: MoveContext, schemas: Sequence[str]) -> list[str]:
    """Name what has changed, as well as it is known."""
    plan = context.plan
    session = context.session(plan.source)
    row = session.execute(QUERIES["noted_parts"], {"move": plan.id}).fetchone()
    if row is None:
        return []
    before = dict(zip(plan.schemas, map(dict, row[0]), strict=True))
    return list(structure_digest.changes(before, structure_digest.parts(session, schemas)))
