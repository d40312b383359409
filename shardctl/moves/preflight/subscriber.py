"""What a subscription takes on the target: workers, an origin, rights, and settings that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier
from shardctl.meter import listed
from shardctl.moves.preflight import member
from shardctl.moves.preflight.subject import STREAM_QUERIES
from shardctl.moves.refusals import TargetUnfit
from shardctl.postgres import queries
from shardctl.postgres.logical import structure, subscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.postgres.connection import Connection

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


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What the target uses already, and what its role lacks and its worker would begin with."""

    workers: int = 0
    appliers: int = 0
    origins: int = 0
    lacking: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Such as `lock_timeout=2s`, of those that stop a worker or change what it reads."""
    passed_on: tuple[str, ...] = ()
    """Rights that its role cannot grant in the name of the roles that have passed them on."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Which roles own what is moved, and rights to it that others have passed on."""

    names: tuple[str, ...] = ()
    passed_on: tuple[str, ...] = ()


def look_for_owners(context: Context) -> Owners:
    """Ask the source who owns what is moved, and who else has granted rights to it."""
    session, schemas = context.session, context.plan.schemas
    user = context.topology.database.user
    return Owners(
        structure.owners(session, schemas), structure.passed_on(session, schemas, but=user)
    )


def look(context: Context) -> Subscriber:
    """Ask the target."""
    session = context.member
    workers, appliers, origins = queries.one(session, STREAM_QUERIES["subscriber"])
    lacking = tuple(what for (what,) in session.execute(STREAM_QUERIES["subscriber_rights"]))
    owners = context.of(look_for_owners) or Owners()
    given = {"owners": list(owners.names)}
    lacking += tuple(
        f"membership in role {name} (WITH INHERIT TRUE, SET TRUE), which owns moved objects"
        for (name,) in session.execute(STREAM_QUERIES["not_theirs"], given)
    )
    settings = _settings(session)
    passed_on = owners.passed_on if subscription.needs_login(session) else ()
    return Subscriber(workers, appliers, origins, lacking, settings, passed_on)


def _settings(session: Connection) -> tuple[str, ...]:
    """Read settings with which a worker would stop, or read other values."""
    names = {"names": list(_SETTINGS), "own": list(_OWN)}
    found = [setting for (setting,) in session.execute(STREAM_QUERIES["apply_settings"], names)]
    if queries.one(session, STREAM_QUERIES["may_read_files"]) == (True,):
        found += [setting for (setting,) in session.execute(STREAM_QUERIES["file_settings"], names)]
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
    if used.passed_on:
        user = context.topology.database.user
        source, target = context.plan.source, context.plan.target
        yield TargetUnfit(
            context.plan.target,
            "rights_passed_on",
            f"{user} is not a superuser there, and on node {source} roles that do not own them "
            f"have granted rights to {listed(used.passed_on)}",
            hint=f"on node {source}, let the owners grant these rights, then run REVOKE GRANT "
            f"OPTION FOR ... CASCADE for the roles named; or make {user} a superuser on node "
            f"{target} for the move",
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
