"""What a clone needs besides to hand over by stream: the source's decoding, logins, settings.

The clone's server is not there so far. It gets the source's roles and settings, so those of the
source are judged, with what the topology sets for the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed
from shardctl.ids.generator import quote_identifier
from shardctl.moves import plan as planning
from shardctl.moves.preflight import (
    contents,
    decoding,
    fleet,
    identities,
    keep_reverse,
    kinds,
    login,
    member,
    server,
    subscriber,
)
from shardctl.moves.preflight.subject import STREAM, Unknown
from shardctl.moves.refusals import SourceUnfit, TargetUnfit
from shardctl.postgres import queries
from shardctl.postgres.logical import stream_login, subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardctl.errors import ShardctlError
    from shardctl.moves.preflight.subject import Context

INSTEAD = f"--handover {planning.PROMOTE}"
_METHOD = "--method clone"
_SECONDS = 30.0
_KINDS = ("materialized_views", "always_triggers", "read_only")
"""Kinds of objects that a clone has, too, and whose rows a stream does not keep right."""
_NEEDED = {
    "max_logical_replication_workers": 1,
    "max_worker_processes": 2,
    "max_replication_slots": 1,
}
"""What the clone needs at least for its subscription."""


@dataclass(frozen=True, slots=True)
class Role:
    """What the login role lacks, and whether a subscription of it would need a password."""

    lacking: tuple[str, ...]
    needs_login: bool
    may_replicate: bool
    settings: tuple[str, ...]
    """Such as `lock_timeout=2s`, which would stop the worker or change what it reads."""


def adapted(
    judge: Callable[[Context], Iterable[ShardctlError]],
) -> Callable[[Context], Iterator[ShardctlError]]:
    """Return a stream's judge whose hints name the other handover instead of the other method."""

    def judged(context: Context) -> Iterator[ShardctlError]:
        for error in judge(context):
            error.hint = (error.hint or "").replace(_METHOD, INSTEAD)
            yield error

    return judged


def judge_source(context: Context) -> Iterator[ShardctlError]:
    """Refuse a source that cannot decode its WAL, or has no tables for streams."""
    yield from decoding.judge(context)
    peer = context.need(fleet.look).peers.get(context.plan.source)
    if peer is not None and (peer.format or 0) < member.WITH_STREAMS:
        yield SourceUnfit(
            context.plan.source,
            "no_streams",
            f"schema shardctl has format {peer.format}; this handover needs format "
            f"{member.WITH_STREAMS}",
            hint=f"run `shardctl init` to update it, or give {INSTEAD}",
        )


def judge_kinds(context: Context) -> Iterator[SourceUnfit]:
    """Refuse objects that the stream would not keep right on a clone."""
    yield from kinds.judge(context, only=_KINDS)


def judge_contents(context: Context) -> Iterator[SourceUnfit]:
    """Refuse columns whose values a stream gives another meaning."""
    yield from contents.referring(context)


def look_at_role(context: Context) -> Role:
    """Ask the source, whose roles the clone gets; raises Unknown of one too old for a stream."""
    identities.require_streams(context)
    session = context.session
    (may_replicate,) = queries.one(session, STREAM["may_replicate"])
    return Role(
        tuple(what for (what,) in session.execute(STREAM["subscriber_rights"])),
        stream_login.is_needed(session),
        may_replicate,
        subscriber.read_settings(session),
    )


def judge_role(context: Context) -> Iterator[SourceUnfit]:
    """Refuse a role that could not subscribe, and settings that would stop the worker."""
    found, node = context.need(look_at_role), context.plan.source
    user = context.topology.database.user
    if found.needs_login or found.lacking:
        yield SourceUnfit(
            node,
            "handover_rights",
            f"{user} is not a superuser, and a clone that hands over by stream needs one",
            hint=f"ALTER ROLE {quote_identifier(user)} SUPERUSER, or give {INSTEAD}",
        )
    if found.settings:
        yield SourceUnfit(
            node,
            "apply_settings",
            "these settings, which the clone gets, would stop the worker of its subscription, or "
            f"change the values that it reads: {', '.join(found.settings)}",
            hint=f"RESET them for the database, the role and the server, or give {INSTEAD}",
        )
    if context.plan.reverse is not None and not found.may_replicate:
        yield SourceUnfit(
            node,
            "reverse_rights",
            f"{user} lacks REPLICATION, and a reverse needs a slot",
            hint=f"ALTER ROLE {quote_identifier(user)} REPLICATION, or give --keep-reverse 0",
        )


def judge_settings(context: Context) -> Iterator[TargetUnfit]:
    """Refuse settings of the node with which the clone could not follow, or be reversed."""
    there = context.need(server.look).settings
    given = {name.lower(): value for name, value in context.target.settings.items()}
    for name, least in _NEEDED.items():
        value = given.get(name, there[name])
        if value.isdecimal() and int(value) < least:
            yield TargetUnfit(
                context.plan.target,
                "settings",
                f"the clone would run with {name} = {value}, and a stream needs {least} or more",
                hint=f"set {name} in the node's settings, or give {INSTEAD}",
            )
    level = given.get("wal_level", there["wal_level"])
    if context.plan.reverse is not None and level != "logical":
        yield TargetUnfit(
            context.plan.target,
            "reverse_wal_level",
            f"the clone would run with wal_level = {level}, and a reverse needs logical",
            hint="set wal_level in the node's settings to logical, or give --keep-reverse 0",
        )


def try_login(context: Context) -> str | None:
    """Log in to the source's database as a subscription would, from the target's host.

    Returns why it could not be tried. Raises TargetUnfit when it failed.
    """
    if context.need(server.look).settings["wal_level"] != "logical":
        raise Unknown
    database = context.topology.database
    conninfo = subscription.conninfo(
        context.source, database, context.purpose, replication="database"
    )
    try:
        return login.attempt(context, conninfo)
    except CommandFailed as error:
        lines = error.completed.stderr.strip().splitlines() or ["psql printed nothing"]
        user = database.replication_user
        raise TargetUnfit(
            context.plan.target,
            "stream_login",
            f"{user} cannot log in from its host to database {database.name} of node "
            f"{context.plan.source} for replication: {lines[0]}",
            hint=f"on node {context.plan.source}, add a line `host {database.name} {user} ADDRESS "
            f"scram-sha-256` to pg_hba.conf, or give {INSTEAD}",
        ) from error


def notes(context: Context) -> Iterator[str]:
    """Say for how long the move can be reversed, and what was not checked."""
    if (why := context.of(try_login)) is not None:
        yield f"node {context.plan.target}: not checked: its login for the stream: {why}"
    if context.plan.reverse is not None:
        yield keep_reverse.kept(context)
