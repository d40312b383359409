"""Clients of a pooler, in a process of their own, and how long they waited.

Run as a program, it is these clients: they send a statement again and again until standard
input ends, and write when each request began and ended.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ExecStatus

from tests.bench import fleet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg.pq.abc import PGconn

    from shardctl.topology.model import Pooler

Window = tuple[float, float]
"""Begin and end on the clock that all processes of the machine share (`time.perf_counter`)."""

SHORT = "SELECT 1"
"""What those ask who want to know whether they have to wait."""

_READY = b"ready\n"


@dataclass(frozen=True, slots=True)
class Waits:
    """When each request of the clients began and ended, in the order of their ends."""

    begins: array[float]
    ends: array[float]

    def longest(self, window: Window) -> float:
        """Give the seconds that a client waited longest for what it asked or had asked then."""
        first = bisect_right(self.ends, window[0])
        pairs = zip(self.begins[first:], self.ends[first:], strict=True)
        return max(end - begin for begin, end in pairs if begin < window[1])


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that are at work."""

    process: subprocess.Popen[bytes]

    def end(self) -> Waits:
        """Let them stop; raises RuntimeError when one got an error."""
        output, _ = self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"the pooler's clients failed: {self.process.returncode}")
        numbers = array("d")
        numbers.frombytes(output)
        return Waits(numbers[::2], numbers[1::2])


@contextlib.contextmanager
def working(pooler: Pooler, aliases: Sequence[str], statement: str) -> Iterator[Clients]:
    """Start a client of each alias in a process of their own; killed here unless it has ended.

    Another process, so that neither side waits for the other's interpreter.
    """
    words = [sys.executable, "-m", "tests.bench.clients", pooler.host, str(pooler.port)]
    process = subprocess.Popen(
        [*words, statement, *aliases],
        cwd=fleet.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            if process.stdout is None or process.stdout.readline() != _READY:
                raise RuntimeError("the pooler's clients did not begin")
            yield Clients(process)
        finally:
            if process.poll() is None:
                process.kill()


def use(connections: Sequence[psycopg.Connection[Any]]) -> None:
    """Ask all at once, so that every alias has a connection to its server; wait for the answers."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.fileno(), selectors.EVENT_READ, connection.pgconn)
            connection.pgconn.send_query(b"SELECT 1")
        while selector.get_map():
            for key, _ in selector.select():
                if _answered(key.data):
                    selector.unregister(key.fileobj)


def _answered(session: PGconn) -> bool:
    """Take what has arrived, and tell whether the answer is whole; raises RuntimeError."""
    session.consume_input()
    if session.is_busy():
        return False
    while (result := session.get_result()) is not None:
        if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            raise RuntimeError(result.error_message.decode(errors="replace"))
    return True


def _work(sessions: Sequence[PGconn], statement: bytes) -> array[float]:
    """Send the statement over every session again and again until standard input ends."""
    found = array("d")
    began = dict.fromkeys(sessions, 0.0)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        for session in sessions:
            selector.register(session.socket, selectors.EVENT_READ, session)
            began[session] = time.perf_counter()
            session.send_query(statement)
        while True:
            for key, _ in selector.select():
                session = key.data
                if session is None:
                    now = time.perf_counter()
                    for begin in began.values():  # those who still wait
                        found.extend((begin, now))
                    return found
                if _answered(session):
                    now = time.perf_counter()
                    found.extend((began[session], now))
                    began[session] = now
                    session.send_query(statement)


def main() -> None:
    """Be the clients; arguments are host, port, statement, aliases. Tell when all are logged in."""
    host, port, statement, *aliases = sys.argv[1:]
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(
                psycopg.connect(host=host, port=port, dbname=a, user="app", autocommit=True)
            )
            for a in aliases
        ]
        sys.stdout.buffer.write(_READY)
        sys.stdout.flush()
        found = _work([connection.pgconn for connection in connections], statement.encode())
        sys.stdout.buffer.write(found.tobytes())
        sys.stdout.flush()
        for connection in connections:
            connection.pgconn.finish()  # with a request under way, which nobody waits for


if __name__ == "__main__":
    main()
