"""The login of a subscription: from the target's server to the source, tried for real.

The target makes a subscription that connects, in a transaction that is rolled back: it makes no
slot, starts no worker, and leaves nothing. Where the subscription is to log in by a role of its
own, which is not there so far, the source has to ask for that role's password.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import libpq
from shardctl.ids.generator import quote_identifier
from shardctl.libpq import reason_of
from shardctl.moves.preflight import events, member, server, subscriber
from shardctl.moves.preflight.subject import STREAM_QUERIES, Unknown
from shardctl.moves.refusals import SourceUnfit, TargetUnfit
from shardctl.postgres import blocking, queries
from shardctl.postgres.logical import subscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context

_ASKED = "password authentication failed"
_NOT_ASKED = "does not exist"
"""What a server reports of a role that it lacks, if it asks for its password, and if not."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Whether the login role may make another on the source, and let that connect."""

    may_make: bool
    may_connect: bool


@dataclass(frozen=True, slots=True)
class Login:
    """Why the login failed, None where it did not; `own` is whether it is by a role of its own."""

    reason: str | None
    own: bool


def look_for_maker(context: Context) -> Maker:
    """Ask the source."""
    return Maker(*queries.one(context.session, STREAM_QUERIES["role_maker"]))


def look(context: Context) -> Login:
    """Try it; raises Unknown of a target that could not make a subscription anyhow."""
    if context.need(member.look).in_recovery or context.need(subscriber.look).lacking:
        raise Unknown
    if context.need(events.look_at_target).refused is not None:  # as it would this statement
        raise Unknown
    name = context.plan.slot
    own = subscription.needs_login(context.member)
    role = {"user": name, "password": "unknown"} if own else {}
    database = context.topology.database
    conninfo = libpq.for_replication(context.source, database, name, dbname=database.name, **role)
    statement = STREAM_QUERIES["try_subscription"].format(
        name=sql.Identifier(name),
        absent=sql.Identifier(f"{name}_absent"),
        conninfo=sql.Literal(conninfo),
    )
    error = blocking.error_of(context.member, statement)
    return Login(None if error is None else _reason(error, own=own), own)


def _reason(error: psycopg.Error, *, own: bool) -> str | None:
    """Give what the source said, or libpq: the target's message has both, and where it called."""
    said = reason_of(error)
    reason = said.rpartition("FATAL:")[2].strip().splitlines()[0].strip()
    if own and _ASKED in reason:
        return None
    if own and _NOT_ASKED in reason:
        return "pg_hba.conf does not ask for its password"
    return reason


def judge(context: Context) -> Iterator[ShardctlError]:
    """Refuse a target whose server cannot log in to the source."""
    found, database, source = context.need(look), context.topology.database, context.source
    if found.own:
        yield from _judge_maker(context)
    if found.reason is not None:
        user = context.plan.slot if found.own else database.replication_user
        yield TargetUnfit(
            context.plan.target,
            "replication_login",
            f"its server cannot log in to node {source.name} as {user}: {found.reason}",
            hint=_hint(context, own=found.own),
        )


def _hint(context: Context, *, own: bool) -> str:
    """Say how a login becomes possible."""
    database, source, target = context.topology.database, context.source, context.plan.target
    at = f"{source.host}:{source.port}"
    if own:
        return (
            f'on node {source.name}, add a line `host {database.name} "/^shardctl_" ADDRESS '
            "scram-sha-256` to pg_hba.conf (`all` in place of the pattern before 16); on node "
            f"{target}, check that it can connect to {at}, "
            "and that database.subscription_options names files of its host"
        )
    user = database.replication_user
    return (
        f"on node {source.name}, give {user} REPLICATION and LOGIN, and add a line `host "
        f"{database.name} {user} ADDRESS scram-sha-256` to pg_hba.conf; on node {target}, add the "
        "password to ~/.pgpass of the user who runs the server, and check that it can connect to "
        f"{at}"
    )


def _judge_maker(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a source where the role of the stream cannot be made."""
    maker, user = context.need(look_for_maker), context.topology.database.user
    there, role = context.need(server.look), quote_identifier(user)
    plan, new = context.plan, there.major >= subscription.LOGINS_SINCE
    if not maker.may_make:
        yield SourceUnfit(
            plan.source,
            "stream_role",
            f"{user} may not create the role for the stream's login, which the move needs because "
            f"{user} is not a superuser on node {plan.target}",
            hint=f"ALTER ROLE {role} CREATEROLE"
            if new
            else f"it has PostgreSQL {there.version}, where only superusers create roles with "
            f"REPLICATION: make {user} a superuser on one of the two nodes",
        )
    if not maker.may_connect:
        name = quote_identifier(context.topology.database.name)
        yield SourceUnfit(
            plan.source,
            "stream_role",
            f"{user} may not let the role for the stream's login connect to the database, which "
            f"the move needs because {user} is not a superuser on node {plan.target}",
            hint=f"GRANT CONNECT ON DATABASE {name} TO {role} WITH GRANT OPTION",
        )


def notes(context: Context) -> Iterator[str]:
    """Say where a password is stored."""
    if context.need(look).own:
        plan, user = context.plan, context.topology.database.user
        yield (
            f"{user} is not a superuser on node {plan.target}, so PostgreSQL stores the password "
            f"of the stream's login in pg_subscription there, which only superusers can read: it "
            f"is that of role {plan.slot}, which exists on node {plan.source} during the move only"
        )
