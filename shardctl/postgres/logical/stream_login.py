"""The login of a subscription whose owner is not a superuser: a role and password for one stream.

PostgreSQL takes from such an owner only a password in the connection string, and keeps that in
`pg_subscription`, where only superusers see it. No statement, and so no log and no
`pg_stat_activity`, has the password: the source gets its SCRAM verifier, the target reads it as a
row of COPY.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres.logical", "stream_login.sql")
OLDEST = 16
"""The first major version where roles other than superusers make roles with REPLICATION."""
_BYTES = 32


def is_needed(target: Connection) -> bool:
    """Return whether a subscription of this session's role must have its password with it."""
    return queries.one(target, _QUERIES["is_needed"]) == (True,)


def make(source: Connection, name: str) -> dict[str, str]:
    """Let a role of this name log in for replication, with a new password; give both for libpq.

    One that is there gets another password. The role of `source` may end its sessions.
    """
    password = secrets.token_urlsafe(_BYTES)
    verifier = source.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256")
    statement = _QUERIES["make"].format(
        name=sql.Literal(name), verifier=sql.Literal(verifier.decode())
    )
    source.execute(statement)
    return {"user": name, "password": password}


def drop(source: Connection, name: str) -> None:
    """Drop the role, if it is there; a session of it goes on until it ends."""
    source.execute(_QUERIES["drop"].format(name=sql.Literal(name)))


def execute(target: Connection, statement: sql.Composed, conninfo: str) -> None:
    """Execute a statement whose `%L` is the connection string, which the server sees nowhere else.

    `target` is in autocommit.
    """
    text = sql.Literal(statement.as_string(target))
    with target.transaction():
        target.execute(_QUERIES["table"])
        with target.cursor().copy(_QUERIES["copy"]) as copy:
            copy.write_row((conninfo,))
        target.execute(_QUERIES["execute"].format(statement=text))
