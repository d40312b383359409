"""A program that answers in a server's place, refuses TLS, and asks for the password."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet

_TLS, _GSS = 80877103, 80877104
_CLEAR_TEXT = b"R" + struct.pack("!ii", 8, 3)


@contextmanager
def impostor() -> Iterator[tuple[int, list[bytes]]]:
    """Listen, and keep what follows the question for the password; no answer is one, too."""
    told: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    told.append(_password(client))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], told
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def _password(client: socket.socket) -> bytes:
    while True:
        size, code = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
        if code not in (_TLS, _GSS):
            break
        client.sendall(b"N")
    client.recv(size - 8, socket.MSG_WAITALL)
    client.sendall(_CLEAR_TEXT)
    return client.recv(1000)


@pytest.mark.parametrize(("own", "given"), [({}, False), ({"PGREQUIREAUTH": "password"}, True)])
def test_whoever_refuses_tls_gets_no_password_unless_the_operator_wants_that(
    fleet_8: Fleet, tmp_path: Path, own: dict[str, str], *, given: bool
) -> None:
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:*:hunter2\n")
    passfile.chmod(0o600)
    with impostor() as (port, told), fleet_8.at_ports(b=port):
        done = fleet_8.shardctl("sql", "SELECT 1", "--shards", "7", PGPASSFILE=str(passfile), **own)
    assert (b"hunter2" in b"".join(told)) is given
    assert told
    assert given or done.returncode == 1
