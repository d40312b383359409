"""Kinds of objects in the moved schemas that no stream carries, or at which it would stop."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.meter import listed
from shardctl.moves.preflight import identities
from shardctl.moves.preflight.subject import STREAM
from shardctl.moves.refusals import Reason, SourceUnfit, TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.moves.preflight.subject import Context

_REFUSALS = (
    Reason(
        "foreign_tables",
        "it has foreign tables in moved shards, whose rows are elsewhere",
        "drop them, or use --method clone",
    ),
    Reason(
        "materialized_views",
        "it has populated materialized views in moved shards, which would arrive empty",
        "DROP them, or REFRESH MATERIALIZED VIEW ... WITH NO DATA, until the move is over, then "
        "REFRESH them on the target; or use --method clone",
    ),
    Reason(
        "enum_hashes",
        "it has tables that are hash-partitioned by an enum, whose hash differs between servers",
        "use --method clone",
    ),
    Reason(
        "forced_row_security",
        "it has tables with FORCE ROW LEVEL SECURITY, which hides rows from the copy",
        "ALTER TABLE ... NO FORCE ROW LEVEL SECURITY until the move is over, or use --method clone",
    ),
    Reason(
        "always_triggers",
        "it has triggers that also fire for replicated rows (ENABLE ALWAYS or REPLICA), which "
        "would run a second time on the target",
        "ALTER TABLE ... ENABLE TRIGGER (without ALWAYS), or use --method clone",
    ),
    Reason(
        "extensions_inside",
        "it has extensions in moved schemas, which a streamed move does not copy",
        "ALTER EXTENSION ... SET SCHEMA public, or use --method clone",
    ),
)
"""By code, which is the kind that the look gives."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """What was found, by kind, and the tablespaces that moved tables and indexes are in."""

    found: Mapping[str, list[str]] = field(default_factory=dict)
    tablespaces: tuple[str, ...] = ()

    @property
    def money(self) -> Sequence[str]:
        """Tables with columns of type money, in whatever form."""
        return self.found.get("money", ())


def look(context: Context) -> Kinds:
    """Ask the source; raises Unknown of one that is too old for a stream."""
    identities.require_streams(context)
    given = {"schemas": list(context.plan.schemas)}
    found: dict[str, list[str]] = defaultdict(list)
    for kind, name in context.session.execute(STREAM["kinds"], given):
        found[kind].append(name)
    spaces = context.session.execute(STREAM["tablespaces_used"], given)
    return Kinds(dict(found), tuple(name for (name,) in spaces))


def look_at_tablespaces(context: Context) -> frozenset[str]:
    """Ask the target for its tablespaces."""
    return frozenset(name for (name,) in context.member.execute(STREAM["tablespaces"]))


def judge(context: Context) -> Iterator[SourceUnfit]:
    """Refuse what would be lost, run twice, or stop the stream."""
    found = context.need(look).found
    for code, what, hint in _REFUSALS:
        if names := found.get(code):
            yield SourceUnfit(context.plan.source, code, f"{what}: {listed(names)}", hint=hint)


def judge_tablespaces(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target without the tablespaces that moved tables are in."""
    there = context.need(look_at_tablespaces)
    lacking = [name for name in context.need(look).tablespaces if name not in there]
    if lacking:
        yield TargetUnfit(
            context.plan.target,
            "tablespaces",
            f"it lacks tablespaces of moved tables: {listed(lacking)}",
            hint="CREATE TABLESPACE there, or ALTER TABLE ... SET TABLESPACE pg_default on node "
            f"{context.plan.source}",
        )
