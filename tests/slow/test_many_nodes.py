"""300 nodes in the file: few descriptors are enough, and many open ones disturb nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.commands import command_line
from tests.fixtures.servers.postgres import SUPERUSER

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.servers.postgres import PgServer, StartServer

NODES = 300
_REFUSED = (80877103, 80877104)
"""The codes of requests for TLS and GSSAPI."""
_OPEN = "import os, sys; [os.open('/dev/null', 0) for _ in range({})]; "
_RUN = "sys.argv = ['shardctl', *sys.argv[1:]]; from shardctl.cli.app import main; main()"


async def _copy(source: StreamReader, target: StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


async def _serve(reader: StreamReader, writer: StreamWriter, port: int, number: int) -> None:
    """Give a client of database `many` that of its node's number."""
    while True:
        if not (head := await reader.read(4)):  # it only looked whether somebody listens
            writer.close()
            return
        (size,) = struct.unpack("!i", head)
        message = await reader.readexactly(size - 4)
        if struct.unpack("!i", message[:4])[0] not in _REFUSED:
            break
        writer.write(b"N")
    name = b"database\0many\0"
    message = message.replace(name, f"database\0many{number}\0".encode())
    up, down = await asyncio.open_connection("127.0.0.1", port)
    down.write(struct.pack("!i", len(message) + 4) + message)
    await asyncio.gather(_copy(reader, down), _copy(up, writer))


@contextlib.contextmanager
def _ports(server: PgServer) -> Iterator[list[int]]:
    """Let each database of a server have a port of its own, as if a server of its own had it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    listening: list[asyncio.Server] = []

    async def listen(number: int) -> int:
        def serve(reader: StreamReader, writer: StreamWriter) -> asyncio.Task[None]:
            return loop.create_task(_serve(reader, writer, server.port, number))

        one = await asyncio.start_server(serve, "127.0.0.1", 0)
        listening.append(one)
        return int(one.sockets[0].getsockname()[1])

    async def end() -> None:
        for one in listening:
            one.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    try:
        yield [asyncio.run_coroutine_threadsafe(listen(n), loop).result() for n in range(NODES)]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def many(pg_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the topology of a fleet of 300 nodes, one shard on each."""
    directory = tmp_path_factory.mktemp("many")
    server = pg_server({"max_connections": "600", "shared_buffers": "16MB"})
    with server.connect() as session:
        for number in range(NODES):
            session.execute(f"CREATE DATABASE many{number}".encode())
    (directory / "migrations").mkdir()
    (directory / "migrations" / "0001_t.sql").write_text("CREATE TABLE t (id bigint);")
    with _ports(server) as ports:
        nodes = "".join(
            f"  n{number}: {{host: 127.0.0.1, port: {port}, shards: '{number}'}}\n"
            for number, port in enumerate(ports)
        )
        file = directory / "topology.yaml"
        file.write_text(
            f"cluster: many\nshards: {{count: {NODES}}}\n"
            f"database: {{name: many, user: {SUPERUSER}, migrations: migrations}}\nnodes:\n{nodes}"
        )
        yield file


def run(file: Path, limit: int, opened: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run shardctl with so many descriptors at most, of which some are taken."""
    program = [command_line()[0], "-c", _OPEN.format(opened) + _RUN, "--topology", str(file)]
    argv = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *program, *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_300_nodes_need_few_descriptors(many: Path) -> None:
    for command, limit, opened in (("init", 1024, 0), ("migrate", 4096, 1100)):
        done = run(many, limit, opened, command, "--yes")
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(run(many, limit, opened, "verify", "-o", "json").stdout)
        assert found["examined"] == {"nodes": NODES, "shards": NODES, "poolers": 0}
        errors = {one["code"] for one in found["findings"] if one["severity"] == "error"}
        assert errors <= {"fsync_off", "full_page_writes_off"}  # of servers of tests
        status = run(many, limit, opened, "status", "--sample", "100ms", "-o", "json")
        assert [one["state"] for one in json.loads(status.stdout)["nodes"]] == ["up"] * NODES
        (many.parent / "migrations" / "0002_more.sql").write_text("CREATE TABLE u (id bigint);")
