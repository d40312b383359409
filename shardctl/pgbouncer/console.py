"""A pooler's admin console: one command at a time, each with a deadline, or several in one packet.

PgBouncer handles all that has arrived over one connection before it looks at any other, as far as
its buffer reaches (`pkt_buf` times `sbuf_loopcnt`, 20 kB unless configured otherwise, which is 800
commands). libpq cannot send that: it waits for the answer to a command before it takes the next,
and its pipeline mode speaks the extended protocol, which the console does not know. So `_exchange`
writes the messages to libpq's own socket, reads the answers from there, and leaves the session as
if it had never been used. It cannot where the session is encrypted: libpq has the keys.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psycopg
from psycopg.pq import ExecStatus

from shardctl import libpq
from shardctl.errors import ShardctlError
from shardctl.ids.generator import quote_identifier
from shardctl.libpq import FOR_POOLERS, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGconn, PGresult

    from shardctl.topology.model import Database, Pooler

_HEAD = struct.Struct("!cI")
_AT_ONCE = 65_536
_READY, _ERROR = b"Z", b"E"

logger = logging.getLogger(__name__)

Row = dict[str, str]
"""One row of an answer by column name, "" for a null; versions of PgBouncer differ in columns."""

DEADLINE = 10.0
"""Seconds for a command that has nothing to wait for."""
SHOW_POOLS = "SHOW POOLS"

_NOT_FOR_POOLERS = frozenset({"client_encoding", "replication", "load_balance_hosts"})
"""Keywords of libpq that speak to PostgreSQL."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


# PgBouncer sends SQLSTATE 08P01 with almost every error, and libpq has none of a login that failed:
# what is decided by texts is decided by those below.
_NOT_PAUSED = "is not paused"
"""The console's answer to RESUME of an alias that was not paused."""
_HELD = "already"
"""Its answer to PAUSE of the console itself while the whole pooler is paused or suspended."""
_OF_POOLER = re.compile(
    "auth(entication)? failed|no such (user|database)|no more connections allowed|login rejected"
    "|not allowed|unsupported|TLS|timeout|no response|no password"
)


def is_of_pooler(reason: str) -> bool:
    """Return whether this is PgBouncer's message about the client, not about a node.

    >>> is_of_pooler("SASL authentication failed"), is_of_pooler("no such user: app")
    (True, True)
    >>> is_of_pooler('password authentication failed for user "app"')
    False
    """
    return " for user " not in reason and _OF_POOLER.search(reason) is not None


def _exchange(connection: PGconn, commands: Sequence[str], *, seconds: float) -> list[str | None]:
    """Send commands at once, and give the error with which each ended, None where it was done.

    The session is idle and not encrypted. Rows of commands are ignored. Raises OSError and
    psycopg.OperationalError, and then the session is lost.
    """
    deadline, unsent = time.monotonic() + seconds, b"".join(map(_query, commands))
    arrived, errors, error = bytearray(), list[str | None](), None
    with socket.socket(fileno=os.dup(connection.socket)) as own:
        own.setblocking(False)  # as libpq has it
        while len(errors) < len(commands):
            # Answers are read while there is more to send: else both sides might wait for ever.
            left = deadline - time.monotonic()
            if left <= 0:
                raise psycopg.OperationalError(f"no response within {seconds:g} s")
            readable = libpq.ready(own.fileno(), left, write=bool(unsent))
            if unsent:
                with suppress(BlockingIOError):
                    unsent = unsent[own.send(unsent) :]
            if not readable:
                continue
            data = own.recv(_AT_ONCE)
            if not data:
                raise psycopg.OperationalError(error or "the pooler closed the connection")
            arrived += data
            for kind, body in _messages(arrived):
                if kind == _ERROR:
                    error = _reason(body)
                elif kind == _READY:
                    errors.append(error)
                    error = None
    return errors


def _query(command: str) -> bytes:
    """Write a message of the simple protocol."""
    text = command.encode() + b"\0"
    return _HEAD.pack(b"Q", len(text) + 4) + text


def _messages(arrived: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take whole messages out of what has arrived."""
    while len(arrived) >= _HEAD.size:
        kind, length = _HEAD.unpack_from(arrived)
        if len(arrived) < length + 1:
            return
        body = bytes(arrived[_HEAD.size : length + 1])
        del arrived[: length + 1]
        yield kind, body


def _reason(body: bytes) -> str:
    """Give the text of an error: of its fields, each with a letter before it, that of M."""
    fields = {field[:1]: field[1:] for field in body.split(b"\0")}
    return fields.get(b"M", b"an error without a text").decode(errors="replace")


class PoolerUnavailable(ShardctlError):
    """A pooler's console cannot be logged in to; `reason` is libpq's or PgBouncer's last word.

    `answered` is whether a pooler runs there, and rejects the login.
    """

    def __init__(self, pooler: Pooler, reason: str, error: psycopg.Error | None = None) -> None:
        user = pooler.admin_user
        super().__init__(
            f"pooler {pooler.name} ({pooler.host}:{pooler.port}): {reason}",
            hint=libpq.login_hint(
                error,
                asked=f"add {user}'s password for database pgbouncer to ~/.pgpass (or "
                "PGPASSFILE), and the user to the pooler's auth_file",
                rejected=f"add {user} to admin_users and auth_file of the pooler, or set another "
                "admin_user",
                unreachable="check host and port, the network, and that PgBouncer is running there",
            ),
        )
        self.reason = reason
        self.answered = libpq.answered(error)


class PoolerLost(ShardctlError):
    """The session with a console broke off, or an answer did not come in time."""

    exit_code = 3

    def __init__(self, pooler: str, command: str, reason: str) -> None:
        super().__init__(
            f"pooler {pooler}: {command}: {reason}",
            hint="check that the pooler is running, and check its log; then run the command again",
        )
        self.command = command
        self.reason = reason


class CommandRefused(ShardctlError):
    """A command that the console answered with an error."""

    def __init__(self, pooler: str, command: str, reason: str) -> None:
        super().__init__(f"pooler {pooler}: {command}: {reason}", hint="check the pooler's log")
        self.command = command
        self.reason = reason

    @property
    def not_paused(self) -> bool:
        """Whether the command was RESUME of an alias that was not paused."""
        return _NOT_PAUSED in self.reason


@dataclass(frozen=True, slots=True)
class Alias:
    """A database as in SHOW DATABASES."""

    name: str
    host: str | None
    port: int
    dbname: str
    paused: bool
    disabled: bool


class Console:
    """A session with the admin console of one pooler; close it, or use it in a `with`.

    A command that waits (PAUSE) keeps the session, so a caller that needs several at once opens
    several. After an error of the session it is of no more use.
    """

    def __init__(
        self,
        pooler: Pooler,
        database: Database,
        *,
        purpose: str | None,
        dbname: str = "pgbouncer",
        user: str | None = None,
    ) -> None:
        """Log in, to an alias where `dbname` is one, and as `admin_user` if no other is named.

        Raises PoolerUnavailable.
        """
        self.pooler = pooler.name
        try:
            given = conninfo(pooler, database, purpose=purpose, dbname=dbname, user=user)
            self._session = psycopg.connect(given, autocommit=True)
        except psycopg.Error as error:  # also a keyword or a value that libpq does not take
            raise PoolerUnavailable(pooler, reason_of(error), error) from error
        self._pq = self._session.pgconn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    @property
    def closed(self) -> bool:
        """Whether the session is of no more use."""
        return bool(self._session.closed)

    def abandon(self) -> None:
        """End the session, and take back what has not arrived yet.

        A PAUSE that the network held up would otherwise arrive after another session's RESUME.
        """
        with (
            contextlib.suppress(psycopg.OperationalError),  # it has broken off already
            socket.socket(fileno=os.dup(self.fileno())) as own,
        ):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def fileno(self) -> int:
        """Give the socket, for `select`."""
        return self._pq.socket

    def execute(self, command: str, *, seconds: float = DEADLINE) -> list[Row]:
        """Send a command and wait for its answer; raises CommandRefused and PoolerLost."""
        self.send(command)
        return self.finish(seconds=seconds)

    def execute_all(self, commands: Sequence[str], *, seconds: float) -> list[CommandRefused]:
        """Execute commands with nothing between them, and give what was refused.

        All go as one packet; where the session is encrypted, one after the other. Raises
        PoolerLost: any of them may have been done then.
        """
        if self._pq.ssl_in_use:
            refused, deadline = [], time.monotonic() + seconds
            for command in commands:
                try:
                    self.execute(command, seconds=max(0.0, deadline - time.monotonic()))
                except CommandRefused as error:
                    refused.append(error)
            return refused
        try:
            errors = _exchange(self._pq, commands, seconds=seconds)
        except (OSError, psycopg.OperationalError) as error:
            self.abandon()
            reason = getattr(error, "strerror", None) or str(error)
            raise PoolerLost(self.pooler, commands[0], reason) from error
        logger.debug("pooler %s: in one packet: %s", self.pooler, "; ".join(commands))
        return [
            CommandRefused(self.pooler, command, error)
            for command, error in zip(commands, errors, strict=True)
            if error
        ]

    def finish(self, *, seconds: float = DEADLINE) -> list[Row]:
        """Wait for the answer to what was sent; raises CommandRefused and PoolerLost."""
        try:
            with self._kept():
                self._results += libpq.Wire(self._pq).results(seconds)
        except BaseException:
            self.abandon()  # it may yet come, and would be taken for another's
            raise
        return self.answer()

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Report a session that breaks off as the pooler's; raises PoolerLost."""
        try:
            yield
        except psycopg.OperationalError as error:
            raise PoolerLost(self.pooler, self._command, reason_of(error)) from error

    def send(self, command: str) -> None:
        """Begin a command; the simple protocol is the only one that the console speaks."""
        self._command = command
        self._results: list[PGresult] = []
        with self._kept():
            self._pq.send_query(command.encode())

    def ready(self) -> bool:
        """Take what has arrived, and return whether the answer is whole; raises PoolerLost."""
        with self._kept():
            self._pq.consume_input()
        while not self._pq.is_busy():
            result = self._pq.get_result()
            if result is None:
                return True
            self._results.append(result)
        return False

    def answer(self) -> list[Row]:
        """Give the rows of a whole answer; raises CommandRefused and PoolerLost."""
        rows: list[Row] = []
        problem: str | None = None
        for result in self._results:
            if result.status == ExecStatus.TUPLES_OK:
                names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
                found = ((value or "" for value in row) for row in libpq.rows(result))
                rows += (dict(zip(names, row, strict=True)) for row in found)
            elif result.status != ExecStatus.COMMAND_OK:
                problem = result.error_message.decode(errors="replace").strip()
        if problem is not None:
            reason = problem.splitlines()[0].removeprefix("ERROR:").strip()
            if self._pq.status != psycopg.pq.ConnStatus.OK:
                raise PoolerLost(self.pooler, self._command, reason)
            raise CommandRefused(self.pooler, self._command, reason)
        logger.debug("pooler %s: %s", self.pooler, self._command)
        return rows

    def reload(self) -> None:
        """Let the pooler read its files again.

        PgBouncer before 1.25 answers the same when it could not: `databases` is the proof.
        """
        self.execute("RELOAD", seconds=60)

    def databases(self) -> dict[str, Alias]:
        """Return what the pooler offers, by alias; its own console is left out."""
        found = {}
        for row in self.execute("SHOW DATABASES"):
            to = row["host"] or None, int(row["port"]), row["database"]
            name, state = row["name"], (row["paused"] == "1", row["disabled"] == "1")
            found[name] = Alias(name, *to, *state)
        found.pop("pgbouncer", None)
        return found

    def pools(self) -> list[Row]:
        """Report every pool, as SHOW POOLS does; the console's own is left out."""
        return [row for row in self.execute(SHOW_POOLS) if row["database"] != "pgbouncer"]

    def servers(self) -> list[Row]:
        """Report every connection to a node, as SHOW SERVERS does."""
        return self.execute("SHOW SERVERS")

    def clients(self) -> list[Row]:
        """Report every client but those of the console, as SHOW CLIENTS does."""
        return [row for row in self.execute("SHOW CLIENTS") if row["database"] != "pgbouncer"]

    def config(self) -> dict[str, str]:
        """Give the parameters in force."""
        return {row["key"]: row["value"] for row in self.execute("SHOW CONFIG")}

    def version(self) -> str:
        """Give PgBouncer's version, such as 1.18.0; raises CommandRefused for another program."""
        (row,) = self.execute("SHOW VERSION")
        shown = row.get("version") or ""
        found = _VERSION.search(shown)
        if found is None:
            raise CommandRefused(
                self.pooler, "SHOW VERSION", f"unexpected response, not from PgBouncer: {shown!r}"
            )
        return found[0]

    def held(self) -> bool:
        """Return whether the whole pooler is paused or suspended, which no alias shows.

        Before 1.19 there is no SHOW STATE. There, PAUSE of the console itself is refused in
        either case, in other words; a user who is no admin cannot know, and is reported False.
        """
        try:
            rows = self.execute("SHOW STATE")
        except CommandRefused:
            try:
                self.execute(pause_command("pgbouncer"))
            except CommandRefused as error:
                return _HELD in error.reason
        return any(row["key"] in ("paused", "suspended") and row["value"] == "yes" for row in rows)


def conninfo(
    pooler: Pooler,
    database: Database,
    *,
    purpose: str | None,
    dbname: str = "pgbouncer",
    user: str | None = None,
) -> str:
    """Write libpq's connection string for the console, or an alias; it never has a password.

    `purpose` becomes the `application_name`. Through an alias in use it has to be None: PgBouncer
    would leave the name on the connection, for clients without one.
    """
    options = {k: v for k, v in database.options.items() if k not in _NOT_FOR_POOLERS}
    given = FOR_POOLERS | ({} if purpose is None else {"application_name": purpose})
    admin = user or pooler.admin_user
    return libpq.conninfo(pooler, options, user=admin, dbname=dbname, **given)


def waited_s(pool: Row) -> float:
    """Return for how many seconds the first waiting client of a pool has been waiting."""
    return int(pool.get("maxwait") or 0) + int(pool.get("maxwait_us") or 0) / 1_000_000


def pause_command(alias: str) -> str:
    """Write the command that pauses an alias.

    >>> pause_command("shard2")
    'PAUSE "shard2"'
    """
    return f"PAUSE {quote_identifier(alias)}"


def resume_command(alias: str) -> str:
    """Write the command that resumes an alias."""
    return f"RESUME {quote_identifier(alias)}"
