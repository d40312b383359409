"""What a reverse goes on from: a slot on its source, and copies that have not changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.moves import reverse_looks
from shardctl.moves.preflight.subject import STREAM
from shardctl.moves.refusals import TargetUnfit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection


def origin_rights(session: Connection) -> tuple[str, ...]:
    """List the functions that set where a stream begins, and that the role may not execute."""
    return tuple(name for (name,) in session.execute(STREAM["origin_rights"]))


def look_at_source(context: Context) -> tuple[ShardctlError, ...]:
    """Compare the structure of the shards; raises reverse_lost."""
    reverse_looks.require_slot(context.session, context.plan)
    return tuple(reverse_looks.at_source(context.session, context.plan))


def look_at_target(context: Context) -> tuple[ShardctlError, ...]:
    """Compare the retired copies with what they were, and look for rights that are missing."""
    node, user = context.plan.target, context.topology.database.user
    found: list[ShardctlError] = [*reverse_looks.at_target(context.member, context.plan)]
    if lacking := origin_rights(context.member):
        found.append(
            TargetUnfit(
                node,
                "reverse_rights",
                f"{user} may not execute {' and '.join(lacking)} there",
                hint=f"run as a superuser there: GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO "
                f"{quote_identifier(user)}",
            )
        )
    return tuple(found)


def judge_source(context: Context) -> Iterable[ShardctlError]:
    """Refuse shards that DDL has changed."""
    return context.need(look_at_source)


def judge_target(context: Context) -> Iterable[ShardctlError]:
    """Refuse copies that were changed, or are another server's."""
    return context.need(look_at_target)
