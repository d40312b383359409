"""Sessions with nodes: libpq's own way, with errors that name the node and never a password.

What replay cancels on a standby is asked again, be it a question or a login.

Ctrl-C cancels statements that threads wait for, and those of sessions that only ask. A lock holds a
question up for seconds, and so does a server that hangs. It may take long: one that is not answered
after a second is looked at from a second session. Where that one gets no answer either, the server
hangs, and is as good as away.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from shardctl import fanout, libpq
from shardctl.errors import ShardctlError
from shardctl.libpq import CONNECT_TIMEOUT_S, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from shardctl.topology.model import Database, Node

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

_WITHIN_S = 5.0
_CONFLICT = "conflict with recovery"
"""What a server shows that speaks English; libpq keeps the SQLSTATE of a login that failed."""
_LOST = "consuming input failed: server closed the connection unexpectedly"
"""psycopg's text for an open session where that text was lost: replay ends sessions, too.

A server that has died rejects the next login, which is another error.
"""

Connection = psycopg.Connection[Any]

_SETTINGS = {
    # Nothing of ours may depend on what a role or database has as its defaults.
    "search_path": "pg_catalog",
    "client_min_messages": "warning",
    "default_transaction_isolation": "read\\ committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "jit": "off",  # catalog questions look large to the planner, and run shorter than it compiles
    "idle_session_timeout": "0",  # the node's lock lives in a session that is idle
    "default_transaction_deferrable": "off",
    # What values and definitions look like as text, which is read or compared.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
}

WITH_TRANSACTION_TIMEOUT = 170_000
"""The oldest server that knows `transaction_timeout`, as libpq writes versions."""


PATIENCE_S = 0.2
"""How long one request to cancel may take; a cancellation may come just too early, too."""

LOCK_TIMEOUT = "3s"
_LOOK_AFTER_S = 1.0
_POLL_S = 0.1


def cancel(session: Connection) -> None:
    """Ask a session's server to cancel what it runs; a server that is gone has ended it."""
    try:
        session.cancel_safe(timeout=PATIENCE_S)
    except psycopg.Error as error:
        logger.debug("could not cancel: %s", reason_of(error))


class Running:
    """Sessions of several threads, whose statements are cancelled together.

    `notice` shows the operator once that they are.
    """

    def __init__(self, notice: Callable[[str], None] = logger.info) -> None:
        self.notice = notice
        self._sessions: set[Connection] = set()  # each change of it is atomic
        self.stopped = threading.Event()
        """Whether they were cancelled: no other statement should begin."""

    @contextmanager
    def statement(self, session: Connection) -> Iterator[None]:
        """Let what a session runs in this block be cancelled."""
        self._sessions.add(session)
        try:
            yield
        finally:
            self._sessions.remove(session)

    def cancel(self) -> None:
        """Cancel what runs now; to be called until nothing does."""
        if not self.stopped.is_set():
            self.stopped.set()
            self.notice("interrupted: cancelling the running statements")
        for session in tuple(self._sessions):
            cancel(session)


class AnswersNothing(psycopg.OperationalError):
    """A server that accepted the connection and then stopped responding."""


class Cancelled(psycopg.OperationalError):
    """A question that was cancelled because Ctrl-C was pressed."""


class Observing(psycopg.Connection[Any]):
    """A session whose questions end by Ctrl-C, and where the server hangs.

    `beside` opens a second session with the same server; it has none itself, and waits for
    `answer_s` at most.
    """

    beside: Callable[[], psycopg.Connection[Any]] | None = None
    answer_s: float = 10.0

    def wait(self, gen: Any, interval: float = _POLL_S, timeout: float | None = None) -> Any:
        """Consume a generator of psycopg's, as its own method does; raises AnswersNothing, too."""
        more = {} if timeout is None else {"timeout": timeout}
        try:
            return waiting.wait(self._watched(gen), self.pgconn.socket, interval=interval, **more)
        except (AnswersNothing, Cancelled, KeyboardInterrupt):
            # psycopg's own way would wait for the server, which may hang.
            cancel(self)
            self.close()
            raise

    def _watched(self, gen: Any) -> Generator[Any, Any, Any]:
        """Hand on what a generator waits for, and look from time to time why it waits."""
        began = time.monotonic()
        next_s = self.answer_s if self.beside is None else _LOOK_AFTER_S
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready:
                    if fanout.interrupted():
                        raise Cancelled("cancelled")
                    if time.monotonic() - began >= next_s:
                        self._look()
                        next_s *= 2
                state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _look(self) -> None:
        """See that the server answers another session."""
        silent = AnswersNothing(
            "the server accepted the connection and then stopped responding for "
            f"{self.answer_s:g} s"
        )
        if self.beside is None:
            raise silent
        try:
            with self.beside() as other:
                other.execute("SELECT")
        except (AnswersNothing, psycopg.errors.ConnectionTimeout) as error:
            raise silent from error
        except psycopg.Error as error:  # such as no room for one more session
            logger.info("a second session with the server failed: %s", reason_of(error))


def ask_again(read: Callable[[], Read]) -> Read:
    """Give what is read from a standby, also where replay cancels that in transit.

    `read` may be a login, or log in where its session was ended. Raises what it raises, and the
    conflict when it happens again and again.
    """
    until = time.monotonic() + _WITHIN_S
    while True:
        try:
            return read()
        except (psycopg.Error, ShardctlError) as error:
            if not cancelled(error) or time.monotonic() > until:
                raise


def cancelled(error: psycopg.Error | ShardctlError) -> bool:
    """Return whether replay was in the way, and nothing else was wrong."""
    if isinstance(error, ShardctlError):
        return all(_CONFLICT in part.message for part in error.parts())
    if isinstance(error, psycopg.errors.SerializationFailure):
        return True
    return any(words in str(error) for words in (_CONFLICT, _LOST))


class NodeUnavailable(ShardctlError):
    """A node cannot be logged in to; `reason` is libpq's or the server's last word."""

    def __init__(self, node: Node, error: psycopg.Error) -> None:
        self.node: str = node.name
        self.reason = reason_of(error)
        self.answered = error.sqlstate is not None or libpq.answered(error)
        """Whether a server answered, and refused this login or a question."""
        address = f"{node.host}:{node.port}"
        super().__init__(f"node {node.name} ({address}): {self.reason}", hint=_hint(error))


class NodeLost(ShardctlError):
    """The session with a node broke off while something ran there."""

    exit_code = 3

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(
            f"node {node}: the connection was lost: {reason}",
            hint="when the server is running again, run the same command again to finish",
        )
        self.node = node


def connect(
    node: Node,
    database: Database,
    *,
    purpose: str,
    dbname: str | None = None,
    autocommit: bool = False,
    local_commit: bool = False,
    observing: bool = False,
) -> Connection:
    """Log in to `node`, in the cluster's database or in `dbname`.

    With `observing` the session only asks: locks and a server that hangs hold it up for seconds.

    `purpose` (a command and who runs it) becomes the session's application_name, so that
    other sessions can see the holder of a lock. With `local_commit` no commit waits for a standby.
    Raises NodeUnavailable.
    """
    wanted = _SETTINGS | ({"synchronous_commit": "local"} if local_commit else {})
    wanted |= {"lock_timeout": LOCK_TIMEOUT} if observing else {}
    try:
        dsn = whole(node, database, purpose, wanted, dbname=dbname or database.name)
        # Of a clone that catches up, replay may break off a login, too.
        connection = ask_again(lambda: _opened(dsn, observing=observing))
        # As an option of the login it would be refused by older servers.
        if connection.info.server_version >= WITH_TRANSACTION_TIMEOUT:
            connection.execute("SET transaction_timeout = 0")
        if not (connection.info.parameter_status("DateStyle") or "").startswith("ISO"):
            connection.execute("SET DateStyle = 'ISO'")  # PGDATESTYLE goes before `options`
        connection.autocommit = autocommit
    # A ProgrammingError is a libpq keyword with a value that libpq does not take.
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise NodeUnavailable(node, error) from error
    logger.debug("connected to node %s, database %s", node.name, dbname or database.name)
    return connection


def _opened(dsn: str, *, observing: bool) -> Connection:
    """Log in, in autocommit."""
    if not observing:
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    session = _observing(dsn)
    session.beside = lambda: _observing(dsn)
    return session


def _observing(dsn: str) -> Observing:
    session = Observing.connect(dsn, autocommit=True, prepare_threshold=None)
    given = conninfo_to_dict(dsn).get("connect_timeout") or 0
    # In libpq 0 is no limit, and nothing is shorter than 2 s.
    session.answer_s = float(max(int(given), 2) if int(given) > 0 else CONNECT_TIMEOUT_S)
    return session


def whole(
    node: Node, database: Database, purpose: str, settings: Mapping[str, str], *, dbname: str
) -> str:
    """Write the connection string of shardctl's own sessions, and of programs that it runs."""
    return libpq.conninfo(
        node, database.options, user=database.user, dbname=dbname, application_name=purpose,
        options=options(database, settings), client_encoding="UTF8",
    )  # fmt: skip


def options(database: Database, settings: Mapping[str, str] = _SETTINGS) -> str:
    """Write libpq's `options`: the topology's, then settings on which shardctl's questions rely."""
    own = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return f"{database.options.get('options', '')} {own}".strip()


def conninfo(node: Node, database: Database, **more: str) -> str:
    """Write what psql logs in to `node` with; libpq finds a password as it does for us."""
    given = {"host": node.host, "port": str(node.port), "user": database.user} | more
    return make_conninfo("", **dict(database.options) | given, dbname=database.name)


def from_host(node: Node, database: Database) -> str:
    """Write the connection string, without a password, with which a pooler's host logs in.

    It has shardctl's options, and not the defaults of the role and the database.
    """
    # Until it opens, a move's target rejects connections through its Unix socket.
    host = node.host if node.pooler_host.startswith("/") else node.pooler_host
    return conninfo(node, database, host=host, options=options(database))


def is_lost(error: psycopg.Error) -> bool:
    """Return whether an error means that the session is gone, not that a statement failed."""
    state = error.sqlstate
    return isinstance(error, psycopg.OperationalError) and (
        state is None or state.startswith(("08", "57P"))
    )


def _hint(error: psycopg.Error) -> str:
    """Return what to do; of a login that failed it is a guess."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "end the session that holds the lock (pg_locks), then run this command again"
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return "set `database.user` to the role that ran `shardctl init`, or to a superuser"
    if isinstance(error, psycopg.errors.UndefinedTable):
        return "restore that table (docs/operations/failures.md)"
    return libpq.login_hint(
        error,
        asked="put the password into ~/.pgpass (or PGPASSFILE); the topology cannot contain "
        "passwords",
        rejected="check `database:` in the topology (`shardctl init` creates the database), and "
        "pg_hba.conf of that server",
        unreachable="check host and port, the network, and that PostgreSQL is running there",
    )


@dataclass(frozen=True, slots=True)
class Route:
    """Two nodes, the database in both, and the application_name of all sessions with them."""

    source: Node
    target: Node
    database: Database
    name: str

    def connect(self, node: Node) -> Connection:
        """Log in to a node, in autocommit; raises NodeUnavailable."""
        return connect(node, self.database, purpose=self.name, autocommit=True)

    def conninfo(self, node: Node, settings: Mapping[str, str]) -> str:
        """Write libpq's connection string for programs on this machine, without a password.

        libpq finds that in the passfile, or in the environment, as it does for shardctl.
        """
        database = self.database
        return whole(node, database, self.name, settings, dbname=database.name)
