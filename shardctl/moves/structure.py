"""The structure of shards that a stream copies: what it was is kept on the source.

A stream carries rows and no DDL: what is made or altered after the copy is never on the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from shardctl.access import stream_fence
from shardctl.access.stream_fence import StructureChanged
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.context import MoveContext

QUERIES = queries.load("shardctl.moves", "structure.sql")


def note(context: MoveContext) -> None:
    """Write down what the structure on the source is, before it is copied; repeatable."""
    plan = context.plan
    with context.on(plan.source):
        session = context.session(plan.source)
        digest = stream_fence.digest(session, plan.schemas)
        session.execute(QUERIES["note"], {"move": plan.id, "note": Jsonb(digest)})


class _Noted(str):
    """The digest of what was copied."""

    __slots__ = ()


def require_same(context: MoveContext, schemas: Sequence[str]) -> None:
    """See that it is what was copied, under the names of the moment; raises StructureChanged."""
    require(context, stream_fence.digest(context.session(context.plan.source), schemas))


def require(context: MoveContext, digest: str) -> None:
    """See that a digest is that of what was copied; raises StructureChanged."""
    plan = context.plan

    def read() -> _Noted:
        session = context.session(plan.source)
        row = session.execute(QUERIES["noted"], {"move": plan.id}).fetchone()
        return _Noted(row[0] if row else "")

    if digest != context.own(_Noted, read):
        raise StructureChanged(plan.source, plan.id)
