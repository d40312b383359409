"""The subscription that applies a stream: made without a copy, watched, dropped; and its login.

PostgreSQL takes from an owner who is not a superuser only a password in the connection string, and
keeps that in `pg_subscription`, where only superusers see it. So there is a role with a password
for one stream. No statement, and so no log and no `pg_stat_activity`, has the password: the source
gets its SCRAM verifier, the target reads it as a row of COPY.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg import sql

from shardctl.errors import Incomplete, Refused
from shardctl.libpq import reason_of
from shardctl.postgres import blocking, queries

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres.logical", "subscription.sql")
_WITH_ORIGIN = 160_000
_DROP_S = 10

_PASSWORD_BYTES = 32


class Progress(NamedTuple):
    """How far a stream is.

    `errors` counts how often its worker failed, for any reason. `confirmed` is what the target has
    on its disk.
    """

    enabled: bool
    errors: int
    confirmed: str | None


def create(session: Connection, name: str, conninfo: str) -> None:
    """Make a disabled subscription to the publication `name` from the slot of that name.

    The target logs in there to look.

    `conninfo` may have a password, which no statement shows.
    `session` is with the target. The worker writes as the owner of the subscription: as the
    tables' owners it would have no USAGE on a closed schema. Raises subscription_refused.
    """
    more = ""
    if session.info.server_version >= _WITH_ORIGIN:
        # `none` would leave out what the source has written under an origin of its own.
        more = ", origin = any, run_as_owner = true"
    statement = _QUERIES["create"].format(
        name=sql.Identifier(name),
        conninfo=sql.SQL("%L"),
        slot=sql.Literal(name),
        more=sql.SQL(more),
    )
    try:
        _execute(session, statement, conninfo)
    except (psycopg.errors.ConnectionException, psycopg.errors.ConnectionFailure) as error:
        raise Refused(
            "subscription_refused",
            f"subscription {name}: the target's server could not log in to the source: "
            f"{reason_of(error)}",
            hint="let the role that replicates log in from the target's host (pg_hba.conf, a "
            "passfile of the server's user), then `shardctl moves resume`",
        ) from None


def oid(session: Connection, name: str) -> int | None:
    """Give the OID of this database's subscription of that name; None where there is none."""
    found = session.execute(_QUERIES["oid"], {"name": name}).fetchone()
    return None if found is None else int(found[0])


def exists(session: Connection, name: str) -> bool:
    """Return whether this database has such a subscription."""
    return oid(session, name) is not None


def enable(session: Connection, name: str) -> None:
    """Let the subscription follow."""
    session.execute(_QUERIES["enable"].format(name=sql.Identifier(name)))


def reconnect(session: Connection, name: str, conninfo: str) -> None:
    """Let the subscription follow its source by another connection string."""
    statement = _QUERIES["reconnect"].format(name=sql.Identifier(name), conninfo=sql.SQL("%L"))
    _execute(session, statement, conninfo)


def begin_at(session: Connection, name: str, lsn: str) -> None:
    """Let a subscription that has never followed begin behind a position of its source.

    Nothing that was committed there before is applied, wherever its slot begins. One that follows
    already goes on from where it is.
    """
    session.execute(_QUERIES["advance"], {"name": name, "lsn": lsn})


def drop(session: Connection, name: str) -> bool:
    """Drop the subscription with its origin, and return whether there was one.

    The source is not asked, so it may be gone; its slot stays. Raises subscription_left.
    """
    if not exists(session, name):
        return False
    timeout = sql.Literal(f"{_DROP_S}s")
    statement = _QUERIES["drop"].format(name=sql.Identifier(name), timeout=timeout)
    try:
        queries.rows_of_last(session, statement)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        raise Incomplete(
            "subscription_left",
            f"subscription {name} could not be dropped within {_DROP_S} s: {reason_of(error)}",
            hint="see what its worker waits for (pg_stat_activity, pg_locks), then `shardctl "
            "moves resume`",
        ) from error
    return True


def progress(source: Connection, target: Connection, name: str) -> Progress | None:
    """Ask both servers how far the stream is; None where the subscription or its slot is gone."""
    state = target.execute(_QUERIES["state"], {"name": name}).fetchone()
    sent = source.execute(_QUERIES["sent"], {"slot": name}).fetchone()
    if state is None or sent is None:
        return None
    return Progress(*state, *sent)


def needs_login(target: Connection) -> bool:
    """Return whether a subscription of this session's role must have its password with it."""
    return queries.one(target, _QUERIES["needs_login"]) == (True,)


def make_login(source: Connection, name: str) -> dict[str, str]:
    """Let a role of this name log in for replication, with a new password; give both for libpq.

    One that is there gets another password. The role of `source` may end its sessions.
    """
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    source.execute(_making_login(source, name, password))
    return {"user": name, "password": password}


def why_no_login(source: Connection, name: str) -> str | None:
    """Return why a role cannot be made that way; tries it, and rolls back."""
    tried = secrets.token_hex(_PASSWORD_BYTES)  # a server may judge what it gets
    error = blocking.error_of(source, _making_login(source, name, tried))
    return None if error is None else reason_of(error)


def _making_login(source: Connection, name: str, password: str) -> sql.Composed:
    verifier = source.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    return _QUERIES["make_login"].format(
        name=sql.Literal(name), verifier=sql.Literal(verifier.decode())
    )


def drop_login(source: Connection, name: str) -> None:
    """Drop the role, if it is there; a session of it goes on until it ends."""
    source.execute(_QUERIES["drop_login"].format(name=sql.Literal(name)))


def _execute(target: Connection, statement: sql.Composed, conninfo: str) -> None:
    """Execute a statement whose `%L` is the connection string, which the server sees nowhere else.

    `target` is in autocommit.
    """
    text = sql.Literal(statement.as_string(target))
    with target.transaction():
        target.execute(_QUERIES["table"])
        with target.cursor().copy(_QUERIES["copy"]) as copy:
            copy.write_row((conninfo,))
        target.execute(_QUERIES["execute"].format(statement=text))
