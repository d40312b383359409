"""Logins of applications through a pooler: tried as libpq makes them, and secrets that are kept."""

from __future__ import annotations

import hashlib
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.libpq import reason_of
from shardctl.pgbouncer import console
from shardctl.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.hosts.host import Host
    from shardctl.topology.model import Database, Pooler

SCRAM = "SCRAM-SHA-256$"
"""How a secret begins that PgBouncer can hand on only where the node has the same one."""

_SECONDS = 5.0
_LINE = re.compile(r'"((?:[^"]|"")*)"\s+"((?:[^"]|"")*)"')
_OF_POOLER = (
    "SASL authentication failed",
    "auth failed",
    "authentication failed",
    "no such user",
    "no such database",
    "no more connections allowed",
    "login rejected",
    "not allowed",
    "unsupported",
    "TLS",
)
"""PgBouncer's own messages, before it asks a node."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A login as an application's role: `refused` is the node's word, `untried` why there is none.

    Both are None where the role got in.
    """

    role: str
    alias: str
    refused: str | None = None
    untried: str | None = None


def attempt(pooler: Pooler, database: Database, alias: str, role: str) -> Attempt:
    """Log in to an alias as a role and ask the node something, for a few seconds at most.

    The password is what libpq finds in a passfile; without one that is asked for, nothing is
    reported.
    """
    conninfo = console.conninfo(pooler, database, purpose=None, dbname=alias, user=role)
    try:
        session = psycopg.connect(
            conninfo, connect_timeout=int(_SECONDS), autocommit=True, prepare_threshold=None
        )
        with closing(session):
            error = _ask(session)
    except psycopg.Error as failed:
        if failed.pgconn is not None and failed.pgconn.needs_password:
            return Attempt(role, alias, untried="no passfile on this machine has its password")
        error = reason_of(failed)
        if "timeout" in error:
            return Attempt(role, alias, untried=error)
    if error is None:
        return Attempt(role, alias)
    if is_of_pooler(error):
        return Attempt(role, alias, untried=f"the pooler rejects it: {error}")
    return Attempt(role, alias, refused=error)


def is_of_pooler(reason: str) -> bool:
    """Return whether this is PgBouncer's message about the client, not about a node.

    >>> is_of_pooler("SASL authentication failed"), is_of_pooler("no such user: app")
    (True, True)
    >>> is_of_pooler('password authentication failed for user "app"')
    False
    """
    return " for user " not in reason and any(word in reason for word in _OF_POOLER)


def secrets(host: Host, pooler: Pooler, config: Mapping[str, str]) -> dict[str, str | None] | None:
    """Read which users the pooler's auth_file has, with digests of their SCRAM secrets.

    A user whose secret is of another kind has None. None in all where there is no file to read.
    """
    path = Path(config.get("auth_file") or "")
    if not path.is_absolute():
        return None
    try:
        text = files.read(host, path, user=pooler.os_user)
    except ShardctlError:  # another user's file: comparing is more than `verify` promises
        return None
    return None if text is None else digests(text)


def digests(text: str) -> dict[str, str | None]:
    r"""Take users and digests of their SCRAM secrets out of an auth_file.

    >>> digests('"app" "plain"\n; "old" "x"\n"a""b" "md5abc"')
    {'app': None, 'a"b': None}
    """
    found: dict[str, str | None] = {}
    for line in text.splitlines():
        if (match := _LINE.match(line.strip())) is not None:
            user, secret = (part.replace('""', '"') for part in match.groups())
            found[user] = digest(secret) if secret.startswith(SCRAM) else None
    return found


def digest(secret: str) -> str:
    """Give what two equal secrets have in common, and from which neither can be reported."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _ask(session: psycopg.Connection[object]) -> str | None:
    """Let the pooler get a connection of the node's; give the error, None for an answer."""
    wire = Wire(session.pgconn)
    wire.send(b"SELECT 1")
    if not wire.answered(_SECONDS):
        raise psycopg.OperationalError(f"timeout: no response within {_SECONDS:g} s")
    result = wire.result()
    said = result.error_message.decode(errors="replace").strip() if result is not None else ""
    return said.splitlines()[0].partition("FATAL: ")[2].strip() or said if said else None
