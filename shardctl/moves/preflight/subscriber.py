"""What a subscription takes: workers, an origin, rights, settings that fit, and a login.

The target makes one that connects, in a transaction that is rolled back: it makes no slot, starts
no worker, and leaves nothing. Where the subscription is to log in by a role of its own, which is
not there so far, the source has to ask for that role's password.

Event triggers of both nodes, also of a clone's source, are tried alike with what a move changes in
the catalogs: it meets some of them only past its point of no return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from shardctl import libpq
from shardctl.ids.generator import quote_identifier
from shardctl.libpq import reason_of
from shardctl.meter import listed
from shardctl.moves.plan import PreflightRefused, SourceUnfit, TargetUnfit
from shardctl.moves.preflight import member, server
from shardctl.moves.preflight.subject import QUERIES, Unknown
from shardctl.postgres import blocking, queries
from shardctl.postgres.logical import structure, subscription
from shardctl.topology import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

_OFF = ("off", "0", "0ms", "origin", "false", "no")
_SETTINGS = {
    "array_nulls": ("on", "true", "yes", "1"),
    "default_transaction_read_only": _OFF,
    "lock_timeout": _OFF,
    "session_replication_role": _OFF,
    "xmloption": ("content",),
}
"""With which values a worker applies all rows as they are."""
_OWN = ("array_nulls", "xmloption")
"""Those that shardctl's sessions leave as they are."""
_FOR_OTHERS = 16
"""The first major version where roles other than superusers make subscriptions."""
_OWN_ORIGINS = 18
"""The first major version with `max_active_replication_origins`."""
_RETRY_MS = 5000
_USED = (
    ("workers", "it has no free background worker"),
    ("appliers", "it has no free worker for a subscription"),
    ("origins", "it has no free replication origin"),
)

_ASKED = "password authentication failed"
_NOT_ASKED = "does not exist"
"""What a server reports of a role that it lacks, if it asks for its password, and if not."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What the target uses already, and what its role lacks and its worker would begin with."""

    workers: int = 0
    appliers: int = 0
    origins: int = 0
    lacking: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Such as `lock_timeout=2s`, of those that stop a worker or change what it reads."""


def look_for_owners(context: Context) -> tuple[str, ...]:
    """Ask the source who owns what is moved."""
    return structure.owners(context.session, context.plan.schemas)


def look(context: Context) -> Subscriber:
    """Ask the target."""
    session = context.member
    workers, appliers, origins = queries.one(session, QUERIES["subscriber"])
    lacking = tuple(what for (what,) in session.execute(QUERIES["subscriber_rights"]))
    given = {"owners": list(context.of(look_for_owners) or ())}
    lacking += tuple(
        f"membership in role {name} (WITH INHERIT TRUE, SET TRUE), which owns moved objects"
        for (name,) in session.execute(QUERIES["not_theirs"], given)
    )
    return Subscriber(workers, appliers, origins, lacking, _settings(session))


def _settings(session: Connection) -> tuple[str, ...]:
    """Read settings with which a worker would stop, or read other values."""
    names = {"names": list(_SETTINGS), "own": list(_OWN)}
    found = [setting for (setting,) in session.execute(QUERIES["apply_settings"], names)]
    if queries.one(session, QUERIES["may_read_files"]) == (True,):
        found += [setting for (setting,) in session.execute(QUERIES["file_settings"], names)]
    parts = [(one, *one.split("=", 1)) for one in dict.fromkeys(found)]
    return tuple(s for s, name, value in parts if value.lower() not in _SETTINGS[name])


def judge(context: Context) -> Iterator[TargetUnfit]:
    """Refuse a target without room for one subscription more, and settings that would stop it."""
    used, server = context.need(look), context.need(member.look)
    origins = (
        "max_active_replication_origins"
        if server.major >= _OWN_ORIGINS
        else "max_replication_slots"
    )
    names = ("max_worker_processes", "max_logical_replication_workers", origins)
    taken = (used.workers, used.appliers, used.origins)
    for name, count, (code, what) in zip(names, taken, _USED, strict=True):
        most = server.number(name)
        if most - count < 1:
            yield TargetUnfit(
                context.plan.target,
                code,
                f"{what}: {name} = {most}, and {count} are in use",
                hint=f"run ALTER SYSTEM SET {name} = {count + 2} (or more) there, then restart the "
                "server",
            )
    if used.lacking:
        user = context.topology.database.user
        role = quote_identifier(user)
        yield TargetUnfit(
            context.plan.target,
            "rights",
            f"{user} lacks rights that a streamed move needs there: {'; '.join(used.lacking)}",
            hint=f"run as a superuser there: GRANT pg_create_subscription, pg_monitor TO {role}, "
            "and grant the other rights"
            if server.major >= _FOR_OTHERS
            else f"it has PostgreSQL {server.version}, which lets only superusers make "
            f"subscriptions: run ALTER ROLE {role} SUPERUSER there for the move, or upgrade it to "
            f"{_FOR_OTHERS}",
        )
    if used.settings:
        yield TargetUnfit(
            context.plan.target,
            "apply_settings",
            "these settings would stop the worker of a subscription, or change the values that it "
            f"reads: {', '.join(used.settings)}",
            hint="RESET them for the database, the role and the server until the move is over; "
            "pg_db_role_setting and pg_file_settings show where they are set",
        )


def notes(context: Context) -> Iterator[str]:
    """Say what makes a stream that broke off wait, and what a move back would need."""
    server, target = context.need(member.look), context.plan.target
    if (retry := server.number("wal_retrieve_retry_interval")) > _RETRY_MS:
        yield (
            f"after a lost connection, node {target} waits {retry / 1000:g} s before it connects "
            "to the source again (wal_retrieve_retry_interval)"
        )
    if server.settings["wal_level"] != "logical":
        yield (
            f"node {target} has wal_level = {server.settings['wal_level']}: to stream the shards "
            "to another node later, set it to logical"
        )


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
    return Maker(*queries.one(context.session, QUERIES["role_maker"]))


def try_login(context: Context) -> Login:
    """Try it; raises Unknown of a target that could not make a subscription anyhow."""
    if context.need(member.look).in_recovery or context.need(look).lacking:
        raise Unknown
    if context.need(look_at_triggers_of_target).refused is not None:  # as it would this statement
        raise Unknown
    name = context.plan.slot
    own = subscription.needs_login(context.member)
    role = {"user": name, "password": "unknown"} if own else {}
    database = context.topology.database
    conninfo = libpq.for_replication(context.source, database, name, dbname=database.name, **role)
    statement = QUERIES["try_subscription"].format(
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


def judge_login(context: Context) -> Iterator[ShardctlError]:
    """Refuse a target whose server cannot log in to the source."""
    found, database, source = context.need(try_login), context.topology.database, context.source
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


def note_login(context: Context) -> Iterator[str]:
    """Say where a password is stored."""
    if context.need(try_login).own:
        plan, user = context.plan, context.topology.database.user
        yield (
            f"{user} is not a superuser on node {plan.target}, so PostgreSQL stores the password "
            f"of the stream's login in pg_subscription there, which only superusers can read: it "
            f"is that of role {plan.slot}, which exists on node {plan.source} during the move only"
        )


@dataclass(frozen=True, slots=True)
class Events:
    """Names of enabled event triggers, and why one of them refuses a move's statements."""

    triggers: Sequence[str] = ()
    refused: str | None = None


def look_at_triggers(context: Context) -> Events:
    """List the event triggers of the source, and rehearse a move's statements if it has any."""
    if context.need(server.look_for_rights):
        raise Unknown
    return _tried(context, context.session, subscribes=False)


def look_at_triggers_of_target(context: Context) -> Events:
    """Do the same on the target, which makes a subscription, too."""
    if context.need(look).lacking:
        raise Unknown
    return _tried(context, context.member, subscribes=True)


def _tried(context: Context, session: Connection, *, subscribes: bool) -> Events:
    """Rehearse the statements in a session with either node, if that has event triggers."""
    plan = context.plan
    triggers = blocking.event_triggers(session)
    if not triggers:
        return Events()
    statements = QUERIES["event_rehearsal"].format(
        schema=sql.Identifier(names.retired(plan.schemas[0], plan.id)),
        renamed=sql.Identifier(f"shardctl_{plan.id}"),
        publish=_part(plan, "event_rehearsal_publish", wanted=plan.streams),
        subscribe=_part(plan, "event_rehearsal_subscribe", wanted=plan.streams and subscribes),
    )
    error = blocking.error_of(session, statements)
    return Events(triggers, None if error is None else reason_of(error))


def _part(plan: MovePlan, query: str, *, wanted: bool) -> sql.Composable:
    """Compose a part of the statements that not every move has."""
    return QUERIES[query].format(name=sql.Identifier(plan.slot)) if wanted else sql.SQL("")


def judge_triggers(context: Context) -> Iterator[PreflightRefused]:
    """Refuse an event trigger that would stop the move."""
    return _refused(context.plan.source, context.need(look_at_triggers))


def judge_triggers_of_target(context: Context) -> Iterator[PreflightRefused]:
    """Refuse one of the target."""
    return _refused(context.plan.target, context.need(look_at_triggers_of_target))


def _refused(node: NodeName, found: Events) -> Iterator[PreflightRefused]:
    if found.refused is not None:
        yield PreflightRefused(
            f"node {node}",
            "event_trigger",
            f"an event trigger ({listed(found.triggers)}) refuses the move's statements: "
            f"{found.refused}",
            hint="make its function accept statements of database.user, or disable it during the "
            "move: ALTER EVENT TRIGGER ... DISABLE",
        )
