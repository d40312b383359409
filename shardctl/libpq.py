"""What every session needs of libpq, with nodes and with poolers: liveliness and error texts.

And messages over libpq's own calls: sent and answered while this process looks after other things.
A process may have any number of files open: `select` could not wait for them.
"""

from __future__ import annotations

import re
import selectors
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus, TransactionStatus

from shardctl.errors import Misused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psycopg import sql
    from psycopg.pq.abc import PGconn, PGresult

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


def for_replication(
    source: Node, database: Database, name: str, *, user: str | None = None, **more: str | int
) -> str:
    """Write the connection string by which a target's server or host replicates; no password.

    `name` becomes the application_name. The password comes from a passfile there: ~/.pgpass, or
    that of `database.subscription_options`, which has what is that host's in the place of what is
    this machine's or shardctl's own in `database.options`. Raises option_invalid.
    """
    own = {name: value for name, value in database.options.items() if name not in _OF_THIS_MACHINE}
    options, user = own | dict(database.subscription_options), user or database.replication_user
    try:
        return conninfo(source, options, user=user, application_name=name, **more)
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


ANSWER_S = 60.0
"""How long an answer that is due may take: as long as the kernel waits for a peer."""

Rows = list[tuple[str | None, ...]]
"""The rows of a statement, each value as the server writes it."""


def ready(socket: int, seconds: float | None, *, write: bool = False) -> bool:
    """Wait until there is something to read, or, to `write`, room; return whether to read."""
    with selectors.PollSelector() as waiting:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        waiting.register(socket, events)
        return any(found & selectors.EVENT_READ for _, found in waiting.select(seconds))


class Wire:
    """What goes over one session's socket; of no other use before the last result.

    `heed` is called before every wait, and at least every `every` seconds if that is a number:
    what it raises ends the message. Raises psycopg.OperationalError when the session is lost.
    """

    def __init__(
        self, pgconn: PGconn, heed: Callable[[], object] = lambda: None, every: float | None = None
    ) -> None:
        self.pgconn = pgconn
        self._heed = heed
        self._every = every

    def send(self, message: bytes) -> None:
        """Send a message of the simple protocol."""
        self.pgconn.send_query(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits to be sent; the answer to it may have to be read for that."""
        while self.pgconn.flush():
            self.take(write=True)

    def take(self, *, write: bool = False) -> None:
        """Wait for a while, and take what has come."""
        self._heed()
        if ready(self.pgconn.socket, self._every, write=write):
            self.pgconn.consume_input()

    def answered(self, seconds: float) -> bool:
        """Wait for a result, but not longer; return whether there is one."""
        until = time.monotonic() + seconds
        while self.pgconn.is_busy():
            if not ready(self.pgconn.socket, max(0.0, until - time.monotonic())):
                return False
            self.pgconn.consume_input()
        return True

    def results(self, seconds: float | None = None) -> Iterator[PGresult]:
        """Give the results as they come; raises OperationalError where one takes too long."""
        while True:
            while seconds is None and self.pgconn.is_busy():
                self.take()
            if seconds is not None and not self.answered(seconds):
                raise psycopg.OperationalError(f"no response within {seconds:g} s")
            if (result := self.pgconn.get_result()) is None:
                return
            yield result


class Sent(Wire):
    """A message on its way; the session is of no other use before `rows`.

    `session` is in autocommit, and idle. Raises psycopg.OperationalError.
    """

    def __init__(self, session: psycopg.Connection[Any], message: sql.Composed | sql.SQL) -> None:
        super().__init__(session.pgconn)
        self._session = session
        self.send(message.as_bytes(session))

    def rows(self, seconds: float = ANSWER_S) -> list[Rows]:
        """Wait for the answer, and give the rows of every statement; raises psycopg.Error.

        A server that gives none within `seconds`, though it is due, has lost the session.
        """
        try:
            results = list(self.results(seconds))
        except psycopg.OperationalError:
            self._session.close()  # the answer may yet come, and would be taken for another's
            raise
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                if self._session.info.transaction_status is TransactionStatus.INERROR:
                    self._session.rollback()
                raise psycopg.errors.error_from_result(result)
        return [rows(result) for result in results]


def rows(result: PGresult) -> Rows:
    """Read the rows of one statement."""
    columns = range(result.nfields)
    read = ((result.get_value(row, c) for c in columns) for row in range(result.ntuples))
    return [tuple(None if v is None else v.decode(errors="replace") for v in row) for row in read]
