"""A web server that loads the application first, with the router open, and forks its workers.

`python -m tests.slow.test_router_preloaded TOPOLOGY` is that server: it prints its port, and
begins a worker again that was killed. A request is a line with a user, and the answer a line with
the users of the rows that were found.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.router import ShardedDatabase

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.fleet import Fleet

WORKERS, CLIENTS, REQUESTS, KILLED = 3, 6, 150, 8
USERS, EACH = 64, 5


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


def _threads(topology: str, listener: socket.socket) -> Callable[[], None]:
    """Open and use the router; give what a worker does."""
    db = ShardedDatabase(topology)
    db.scatter("id", "photos", limit=1)

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            user = int(self.rfile.readline())
            rows = db.select("user_id", "photos", user, "user_id = %s", [user])
            self.wfile.write(json.dumps(rows).encode())

    def work() -> None:
        server = _Server(("127.0.0.1", 0), Answer, bind_and_activate=False)
        server.socket = listener
        server.serve_forever()

    def go_on() -> None:
        while True:
            db.select("user_id", "photos", 1)

    threading.Thread(target=go_on, daemon=True).start()
    return work


def main(topology: str) -> None:
    """Be the server, until it is killed with its process group."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        work = _threads(topology, listener)
        print(listener.getsockname()[1], flush=True)  # noqa: T201  # the test reads it
        workers = 0
        while True:
            while workers < WORKERS:
                if os.fork() == 0:
                    work()
                workers += 1
            os.wait()
            workers -= 1


def _ask(port: int, drawn: random.Random) -> list[str]:
    """Ask for one user after another; say of rows that are another's, and of no answer."""
    wrong, answered = list[str](), 0
    while answered < REQUESTS and not wrong:
        user = drawn.randrange(USERS)
        said = b""
        with (
            suppress(ConnectionError),  # its worker was killed
            socket.create_connection(("127.0.0.1", port), 60) as one,
        ):
            one.sendall(b"%d\n" % user)
            while part := one.recv(65536):
                said += part
        if said.endswith(b"]"):
            answered += 1
            rows = json.loads(said)
            if rows != [[user]] * EACH:
                wrong.append(f"{user} got {rows}")
    return wrong


def test_a_server_that_preloads_gives_every_user_his_own_rows(
    fleet_routed: Fleet,
) -> None:
    for shard in range(8):
        users = f"generate_series({shard}, {USERS - 1}, 8) u, generate_series(1, {EACH}) n"
        insert = f"INSERT INTO shard{shard}.photos (user_id) SELECT u FROM {users}"
        fleet_routed.execute("a" if shard < 4 else "b", insert)
    command = [sys.executable, "-m", __name__, str(fleet_routed.write())]
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, start_new_session=True, cwd=Path(__file__).parents[2]
        ) as server,
        ThreadPoolExecutor(CLIENTS) as clients,
    ):
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            drawn = [random.Random(number) for number in range(CLIENTS)]  # noqa: S311  # no secret
            asking = [clients.submit(_ask, port, one) for one in drawn]
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
            for _ in range(KILLED):
                _ask(port, drawn[0])  # so that workers have begun, and used it
                os.kill(int(drawn[1].choice(children.read_text().split())), signal.SIGKILL)
            assert [wrong for one in asking for wrong in one.result(300)] == []
        finally:
            os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
