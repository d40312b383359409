"""Replica identities: by what a stream names the rows that clients update and delete.

They are looked at before anything is published: a table without one refuses its clients' UPDATE
and DELETE from the moment of its publication.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.preflight import decoding, server
from shardctl.moves.preflight.subject import STREAM, Unknown
from shardctl.moves.refusals import Reason, SourceUnfit
from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.moves.preflight.subject import Context

_REFUSALS = {
    "none": Reason(
        "no_replica_identity",
        "tables without a replica identity, so clients could not update or delete their rows "
        "during the move",
        "give each a primary key that is not deferrable, run ALTER TABLE ... REPLICA IDENTITY "
        "FULL, or use --method clone",
    ),
    "index_generated": Reason(
        "generated_identity",
        "tables whose replica identity has a generated column, which is not replicated",
        "run ALTER TABLE ... REPLICA IDENTITY USING INDEX with another unique index, or use "
        "--method clone",
    ),
    "full_generated": Reason(
        "generated_identity_full",
        "tables with REPLICA IDENTITY FULL and generated columns, which are not replicated",
        "give each a primary key and REPLICA IDENTITY DEFAULT, or use --method clone",
    ),
    "full_unequal": Reason(
        "identity_without_equality",
        "tables with REPLICA IDENTITY FULL and columns whose types cannot be compared",
        "give each a primary key and REPLICA IDENTITY DEFAULT, or use --method clone",
    ),
}


@dataclass(frozen=True, slots=True)
class Identities:
    """Tables whose replica identity is not a plain index, by what is odd about it."""

    odd: Mapping[str, list[str]] = field(default_factory=dict)
    tables: int = 0
    """How many tables are to be published in all."""


def look(context: Context) -> Identities:
    """Ask the source for each moved table; raises Unknown of one that is too old for a stream."""
    require_streams(context)
    given = {"schemas": list(context.plan.schemas)}
    odd: dict[str, list[str]] = defaultdict(list)
    for verdict, name in context.session.execute(STREAM["identities"], given):
        odd[verdict].append(name)
    (tables,) = queries.one(context.session, STREAM["tables"], given)
    return Identities(dict(odd), tables)


def require_streams(context: Context) -> None:
    """See that the source's catalogs are those of a version that streams; raises Unknown."""
    if context.need(server.look).major < decoding.OLDEST:
        raise Unknown


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse tables of which no UPDATE or DELETE could be published or applied."""
    odd = context.need(look).odd
    for verdict, (code, what, hint) in _REFUSALS.items():
        if names := odd.get(verdict):
            said = f"it has {what}: {listed(names)}"
            yield SourceUnfit(context.plan.source, code, said, hint=hint)


def notes(context: Context) -> Iterator[str]:
    """Say which tables make a stream slow."""
    if names := context.need(look).odd.get("full"):
        yield (
            f"tables with REPLICA IDENTITY FULL: {listed(names)}; for each UPDATE and DELETE, node "
            f"{context.plan.target} may read the whole table to find the row"
        )
