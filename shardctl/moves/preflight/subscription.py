"""The login of a subscription: from the target's server to the source, tried for real.

The target makes a subscription that connects, in a transaction that is rolled back: it makes no
slot, starts no worker, and leaves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl.libpq import reason_of
from shardctl.moves.preflight import member, subscriber
from shardctl.moves.preflight.subject import STREAM, Unknown
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import event_triggers
from shardctl.postgres.logical import subscription as subscriptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context


def look(context: Context) -> str | None:
    """Try it; give why it failed, None where it did not.

    Raises Unknown of a target that could not make a subscription anyhow.
    """
    if context.need(member.look).in_recovery or context.need(subscriber.look).lacking:
        raise Unknown
    database = context.topology.database
    name = context.plan.slot
    statement = STREAM["try_subscription"].format(
        name=sql.Identifier(name),
        conninfo=sql.Literal(subscriptions.conninfo(context.source, database, name)),
    )
    error = event_triggers.error_of(context.member, statement)
    return None if error is None else _reason(error)


def _reason(error: psycopg.Error) -> str:
    """Give what the source said, or libpq: the target's message has both, and where it called."""
    said = reason_of(error)
    return said.rpartition("FATAL:")[2].strip().splitlines()[0].strip()


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target whose server cannot log in to the source."""
    reason, database, source = context.need(look), context.topology.database, context.source
    if reason is not None:
        user = database.replication_user
        yield TargetUnfit(
            context.plan.target,
            "replication_login",
            f"its server cannot log in to node {source.name} as {user}: {reason}",
            hint=f"on node {source.name}, give {user} REPLICATION and LOGIN, and add a line `host "
            f"{database.name} {user} ADDRESS scram-sha-256` to pg_hba.conf; on node "
            f"{context.plan.target}, add the password to ~/.pgpass of the user who runs the "
            f"server, and check that it can connect to {source.host}:{source.port}",
        )
