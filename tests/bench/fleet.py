"""Servers for benches: as PostgreSQL comes, on free ports, gone at the end whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.fanout import Silent
from shardctl.hosts import accounts
from shardctl.postgres import binaries
from shardctl.sandbox import new, servers
from shardctl.topology import loader
from tests.fixtures.servers.postgres import free_run, new_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Topology

ROOT = Path(__file__).parents[2]
SHARDCTL = Path(sys.executable).with_name("shardctl")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# Starts a program, waits, and tells seconds and peak KB on standard error. A small process
# has to do it: Linux counts to a program's peak what the one that forked it had.
_WATCHER = """\
import os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - began, usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Running servers, on which clusters of any number of shards may be made in turn."""

    directory: Path
    ports: tuple[int, ...]

    def topology(self, shards: int) -> Topology:
        """Write and read the file of a cluster with so many shards on all of these servers."""
        path = self.directory / f"{shards}.yaml"
        port = self.ports[0] - 1  # that of the pooler, of which benches start their own
        text = rendered(self.directory, shards=shards, nodes=len(self.ports), spare=0, port=port)
        path.write_text(text.partition("poolers:")[0], encoding="utf-8")
        return loader.load(path)

    def connect(
        self, index: int = 0, *, user: str = "app", dbname: str = "app", **options: Any
    ) -> psycopg.Connection[Any]:
        """Log in to a server, in autocommit unless told otherwise."""
        given: dict[str, Any] = {"autocommit": True} | options
        port = self.ports[index]
        return psycopg.connect(host="127.0.0.1", port=port, dbname=dbname, user=user, **given)

    def each(self, dbname: str = "postgres") -> Iterator[psycopg.Connection[Any]]:
        """Log in to one server after the other as the superuser."""
        for index in range(len(self.ports)):
            with self.connect(index, user="postgres", dbname=dbname) as connection:
                yield connection

    def init(self, shards: int) -> Topology:
        """Make a cluster by the command, as an operator would."""
        topology = self.topology(shards)
        run([SHARDCTL, "--topology", topology.path, "init", "--yes"])
        return topology

    def drop(self) -> None:
        """Remove the cluster's database on every server."""
        for connection in self.each():
            connection.execute("DROP DATABASE IF EXISTS app WITH (FORCE)")

    def restart(self, setting: str, value: int) -> None:
        """Give all servers another value of a setting that counts from a start on."""
        for connection in self.each():
            connection.execute(f"ALTER SYSTEM SET {setting} = {value}".encode())
        topology = self.topology(len(self.ports))
        servers.down(topology, Silent(), delete=False)
        servers.up(topology, Silent())

    def settle(self) -> None:
        """Write out what earlier work left dirty, in the servers and in the kernel.

        Without this a side pays for the pages of the one before it.
        """
        for connection in self.each():
            connection.execute("CHECKPOINT")
        os.sync()

    def psql(self, index: int = 0, *, user: str = "app") -> list[str | Path]:
        """Begin a psql command line: the program itself, not Debian's wrapper, which is slower."""
        found = binaries.find(None, account=accounts.server_account(None))
        way = ["-h", "127.0.0.1", "-p", str(self.ports[index]), "-U", user, "-d", "app"]
        return [found.program("psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", *way]


def rendered(directory: Path, **given: int) -> str:
    """Give the topology of a sandbox below a directory."""
    return new.render(**given, cluster="bench", data_root=directory / "data", migrations=True)


@contextlib.contextmanager
def running(nodes: int) -> Iterator[Fleet]:
    """Start servers with PostgreSQL's own settings (fsync, 128 MB of buffers), then stop them."""
    with new_directory("bench-", undisturbed()) as directory:
        shutil.copytree(ROOT / "migrations", directory / "migrations")
        fleet = Fleet(directory, tuple(free_run(1 + nodes))[1:])
        try:
            servers.up(fleet.topology(nodes), Silent())
            yield fleet
        finally:
            with undisturbed():
                servers.down(fleet.topology(nodes), Silent(), delete=True)


def run(argv: list[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; it is killed when this process is interrupted."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{argv[0]}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done


def watched(argv: list[str | Path]) -> tuple[str, float, int]:
    """Run a program to its end; give its output, the seconds, and its peak in KB."""
    done = run([sys.executable, "-c", _WATCHER, *argv])
    took, peak = done.stderr.split()[-2:]
    return done.stdout, float(took), int(peak)


@contextlib.contextmanager
def together(
    commands: list[list[str | Path]], outputs: list[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start programs side by side; those that still run at the end are killed."""
    started: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as files:
        try:
            for position, argv in enumerate(commands):
                target = files.enter_context(outputs[position].open("wb"))
                started.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=target))
            yield started
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()


def take(commands: list[list[str | Path]]) -> float:
    """Run programs side by side, throw their answers away, and give the seconds of all."""
    began = time.perf_counter()
    with together(commands, [Path(os.devnull)] * len(commands)) as started:
        wait_all(started)
    return time.perf_counter() - began


def wait_all(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for programs; raises RuntimeError if one failed."""
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"exit codes {codes}")


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let nothing end this process while it stops its servers; programs that it runs still end."""
    before = {each: signal.signal(each, lambda *_: None) for each in ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
