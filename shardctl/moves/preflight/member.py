"""The target of a stream: a server with room on its disk and nothing in the shards' place.

It makes a subscription that connects to the source, in a transaction that is rolled back: it makes
no slot, starts no worker, and leaves nothing. Where it is to log in by a role of its own, which is
not there so far, the source has to ask for that role's password.

Event triggers of both nodes, also of a clone's source, are tried alike with what a move changes in
the catalogs: it meets some of them only past its point of no return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import libpq
from shardctl.ids.generator import quote_identifier
from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves import wal as room
from shardctl.moves.plan import PreflightRefused, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import fleet, server, shards, table
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import binaries, blocking
from shardctl.postgres.logical import subscription
from shardctl.provision.refusals import schema_in_the_way
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.preflight.table import Answers
    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

_ASKED = "password authentication failed"
_NOT_ASKED = "does not exist"
"""What a server reports of a role that it lacks, if it asks for its password, and if not."""


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse a target that is no member, or is a standby, or cannot apply the source's rows."""
    node, source = context.plan.target, context.need(server.look)
    there, peer = context.need(server.look_at_target), context.need(fleet.look).values.get(node)
    if there.in_recovery:
        yield TargetUnfit(
            node,
            "target_standby",
            "its server is a standby, and a move needs a primary",
            hint="set host and port of the node in the topology to those of its primary",
        )
    elif peer is not None and peer.said.version is None:
        yield TargetUnfit(
            node,
            "no_streams",
            "schema shardctl is missing, so no shards can be streamed there",
            hint="run `shardctl init` to make the node a member of the cluster",
        )
    # A reverse goes back to a server that may well be older.
    if context.plan.reverses is None and there.major < max(source.major, server.OLDEST_STREAMED):
        needed = max(source.major, server.OLDEST_STREAMED)
        yield TargetUnfit(
            node,
            "version",
            f"it has PostgreSQL {there.version}, and the source has {source.version}",
            hint=f"a streamed move needs a target with PostgreSQL {needed} or newer",
        )
    if peer is not None and peer.live:
        yield schema_in_the_way(
            node,
            "it already has schemas with the names of moved shards",
            sorted(peer.live),
            hint="run `shardctl moves doctor` to clear what an earlier move left; otherwise check "
            "that you need nothing in them, then drop them",
        )


def find_programs(context: Context) -> Binaries:
    """Find programs that are not older than either server; raises no_pg_dump."""
    looks = (server.look, server.look_at_target)
    return binaries.find_clients(max(context.need(look).major for look in looks))


def look_at_disk(context: Context) -> int | None:
    """Measure the free bytes of the target's disk; None where its host cannot be asked."""
    directory = context.need(server.look_at_target).settings.get("data_directory")
    free, _ = room.free_bytes(context.target, directory, inside="base/.")
    return free


def judge_disk(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a disk without room for the shards."""
    free, there = context.need(look_at_disk), context.need(server.look_at_target)
    return shards.judge_target(context, "its disk", free, there)


def look_for_maker(context: Context) -> str | None:
    """Try on the source to make a role for the stream's login; return why that failed."""
    return subscription.why_no_login(context.session, context.plan.slot)


def try_login(context: Context) -> bool:
    """Log in to the source by a subscription; return whether that is by a role of its own.

    Raises TargetUnfit, SourceUnfit; and Unknown of a target that could not make a subscription
    anyhow.
    """
    if context.need(server.look_at_target).in_recovery:
        raise Unknown
    context.need(look_at_triggers)  # they refuse this statement, too
    name, plan, database = context.plan.slot, context.plan, context.topology.database
    own = subscription.needs_login(context.member)
    role = {"user": name, "password": "unknown"} if own else {}
    if own and (why := context.need(look_for_maker)) is not None:
        raise SourceUnfit(
            plan.source,
            "stream_role",
            f"{database.user} may not create the role for the stream's login, which the move needs "
            f"because {database.user} is not a superuser on node {plan.target}: {why}",
            hint=f"ALTER ROLE {quote_identifier(database.user)} CREATEROLE REPLICATION, or before "
            "16 SUPERUSER on one of the nodes",
        )
    conninfo = libpq.for_replication(context.source, database, name, dbname=database.name, **role)
    statement = QUERIES["try_subscription"].format(
        name=sql.Identifier(name),
        absent=sql.Identifier(f"{name}_absent"),
        conninfo=sql.Literal(conninfo),
    )
    error = blocking.error_of(context.member, statement)
    reason = None if error is None else _reason(error, own=own)
    if reason is not None:
        user, whose = (name, '"/^shardctl_"') if own else [database.replication_user] * 2
        raise TargetUnfit(
            plan.target,
            "replication_login",
            f"its server cannot log in to node {plan.source} as {user}: {reason}",
            hint=f"on node {plan.source}, let {user} log in with REPLICATION, and add a line `host "
            f"{database.name} {whose} ADDRESS scram-sha-256` to pg_hba.conf (`all` for a pattern "
            f"before 16); on node {plan.target}, check ~/.pgpass of the server's user, "
            f"database.subscription_options, and {context.source.host}:{context.source.port}",
        )
    return own


def _reason(error: psycopg.Error, *, own: bool) -> str | None:
    """Give what the source said, or libpq: the target's message has both, and where it called."""
    said = reason_of(error)
    reason = said.rpartition("FATAL:")[2].strip().splitlines()[0].strip()
    if own and _ASKED in reason:
        return None
    if own and _NOT_ASKED in reason:
        return "pg_hba.conf does not ask for its password"
    return reason


def note_login(context: Context) -> Iterator[str]:
    """Say where a password is stored."""
    if context.need(try_login):
        plan, user = context.plan, context.topology.database.user
        yield (
            f"{user} is not a superuser on node {plan.target}, so PostgreSQL stores the password "
            f"of the stream's login in pg_subscription there, which only superusers can read: it "
            f"is that of role {plan.slot}, which exists on node {plan.source} during the move only"
        )


def look_at_triggers_of_source(context: Context) -> None:
    """Rehearse a move's statements on a source with event triggers; raises PreflightRefused."""
    _rehearse(context, context.plan.source, context.session, context.need(table.RIGHTS.look))


def look_at_triggers(context: Context) -> None:
    """Do the same on the target, which makes a subscription, too."""
    lacking = context.need(table.RIGHTS.look_at_target)
    _rehearse(context, context.plan.target, context.member, lacking)


def _rehearse(context: Context, node: NodeName, session: Connection, lacking: Answers) -> None:
    plan = context.plan
    if lacking:
        raise Unknown
    if not (triggers := blocking.event_triggers(session)):
        return
    named = {"schema": sql.Identifier(names.retired(plan.schemas[0], plan.id))}
    named["name"] = sql.Identifier(plan.slot)
    wanted = ("made", plan.streams and "published", node == plan.target and "subscribed", "renamed")
    parts = [QUERIES[f"event_{one}"].format(**named) for one in wanted if one]
    if (error := blocking.error_of(session, sql.SQL("\n").join(parts))) is not None:
        raise PreflightRefused(
            f"node {node}",
            "event_trigger",
            f"an event trigger ({listed(triggers)}) refuses the move's statements: "
            f"{reason_of(error)}",
            hint="make its function accept statements of database.user, or disable it during the "
            "move: ALTER EVENT TRIGGER ... DISABLE",
        )
