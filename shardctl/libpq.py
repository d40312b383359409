"""What every session needs of libpq, with nodes and with poolers: liveliness and error texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import psycopg
from psycopg.conninfo import make_conninfo

from shardctl.errors import Misused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.topology.model import Database, Node, Pooler

CONNECT_TIMEOUT_S = 10
LIVELINESS: dict[str, str | int] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""For hosts that do not answer, or cease to; `database.options` overrides any of it."""


_CLEAR_TEXT = "cleartext password"
_CLEAR_TEXT_HINT = (
    "use scram-sha-256 there; where only a password in clear text works (methods password, ldap, "
    "pam and radius), set require_auth: password and sslmode: verify-full in database.options"
)


ANY_SERVER: dict[str, str | int] = {"target_session_attrs": "any"}
"""A clone is logged in to as a standby, whatever PGTARGETSESSIONATTRS is."""
FOR_POOLERS = ANY_SERVER | {"options": ""}
"""What would also come from PGOPTIONS, PGTARGETSESSIONATTRS or a service: PgBouncer refuses it."""
_SAID = re.compile(r"\S+:  (.*)")
"""What a server says: how grave it is, in its own language, and why. libpq writes no two spaces."""

_OF_THIS_MACHINE = ("options", "application_name", "service", "passfile", "sslkey", "sslcert")


def conninfo(
    at: Node | Pooler, options: Mapping[str, str], /, *, user: str, **more: str | int
) -> str:
    """Write the connection string of a session, without a password, which libpq finds by itself.

    The topology's `options` override what every session needs; nothing overrides the address and
    `more`.
    """
    given = LIVELINESS | ANY_SERVER | dict(options)
    return make_conninfo("", **given | {"host": at.host, "port": at.port, "user": user} | more)


def for_replication(source: Node, database: Database, name: str, **more: str | int) -> str:
    """Write the connection string by which a target's server or host replicates; no password.

    `name` becomes the application_name. The password comes from a passfile there: ~/.pgpass, or
    that of `database.subscription_options`, which has what is that host's in the place of what is
    this machine's or shardctl's own in `database.options`. Raises option_invalid.
    """
    own = {name: value for name, value in database.options.items() if name not in _OF_THIS_MACHINE}
    given = {"user": database.replication_user, "application_name": name} | more
    user = str(given.pop("user"))
    try:
        return conninfo(source, own | dict(database.subscription_options), user=user, **given)
    except psycopg.ProgrammingError as error:
        raise Misused(
            "option_invalid",
            f"database.subscription_options: {reason_of(error)}",
            hint="correct the topology",
        ) from error


def dsn(host: str, port: int, dbname: str) -> str:
    """Write a connection string for people and applications, without user or password."""
    return make_conninfo("", host=host, port=port, dbname=dbname)


def reason_of(error: psycopg.Error) -> str:
    """Give the most useful line of an error."""
    if error.diag.message_primary:
        return error.diag.message_primary
    # An answer of the server tells more than a refused connection at the host's other address.
    tried = _tried(error)
    said = [found[1] for reason in tried if (found := _SAID.fullmatch(reason))]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ([*said, *tried, *lines[-1:]] or [type(error).__name__])[0]


def answered(error: BaseException | None) -> bool:
    """Return whether a server rejected a login, and not the network; in whatever language."""
    return any(_SAID.fullmatch(reason) for reason in _tried(error))


def login_hint(error: psycopg.Error | None, *, asked: str, rejected: str, unreachable: str) -> str:
    """Choose what to do about a login that failed, by what libpq knows of it.

    It keeps no SQLSTATE of one, but whether a password was asked for, and what a server said.
    """
    if _CLEAR_TEXT in str(error):  # libpq's own refusal, by `require_auth`
        return _CLEAR_TEXT_HINT
    pgconn = None if error is None else error.pgconn
    if pgconn is not None and (pgconn.needs_password or pgconn.used_password):
        return asked
    return rejected if answered(error) else unreachable


def _tried(error: BaseException | None) -> list[str]:
    """List why a login failed, for each address that libpq tried: `... port 1 failed: reason`."""
    lines = str(error).splitlines()
    return [line.rsplit("failed: ", 1)[1].strip() for line in lines if "failed: " in line]
