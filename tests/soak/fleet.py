"""A sandbox of four nodes and two poolers, each node on a small disk of its own if possible."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl.hosts import accounts
from shardctl.pgbouncer import server as pgbouncer
from shardctl.postgres import binaries, pidfile
from shardctl.topology import loader
from tests.fixtures.servers.postgres import BASE, PREFIX, free_run, stop_all_below, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Topology

SHARDS = 32
NODES = ("a", "b", "c", "d")
POOLERS = ("p1", "p2")
MAX_PAUSE_S = 3.0
DATABASE, ROLE, SUPERUSER = "app", "app", "postgres"
PRIVATE = "SHARDCTL_SOAK_PRIVATE"
"""Set in a process whose mounts no other process sees; they end with it."""

_NOT_INSTALLED = (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile)
_SHARDCTL = Path(sys.executable).with_name("shardctl")
_DISK = "500m"
_SETTINGS = {
    # A killed process loses nothing that the kernel has, and no machine ends here.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "150",
}
_TABLE = """\
-- What the clients of the soak write; `port` is that of the node that executes the insert.
CREATE TABLE writes (
    id      bigint  PRIMARY KEY DEFAULT next_id(),
    token   bigint  NOT NULL,
    version integer NOT NULL DEFAULT 0,
    port    integer NOT NULL DEFAULT current_setting('port')::integer
);
CREATE INDEX writes_token_idx ON writes (token);
"""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where it is; the topology file changes with every move."""

    directory: Path
    disks: bool
    """Whether every node has a disk of its own, which can be filled."""

    @property
    def path(self) -> Path:
        return self.directory / "topology.yaml"

    @property
    def migrations(self) -> Path:
        return self.directory / "migrations"

    def topology(self) -> Topology:
        return loader.load(self.path)

    def disk(self, node: str) -> Path:
        return self.directory / "nodes" / node

    def data(self, node: str) -> Path:
        return self.disk(node) / "data"

    def ports(self) -> dict[int, str]:
        """Give the node of each port."""
        return {node.port: str(node.name) for node in self.topology().nodes.values()}

    def command(self, *words: str, topology: Path | None = None) -> list[str]:
        """Compose a command line of shardctl, with its log on standard error."""
        return [str(_SHARDCTL), "--topology", str(topology or self.path), "--verbose", *words]

    def call(self, *words: str) -> str:
        """Run shardctl to its end and give its output; raises RuntimeError when it fails."""
        done = subprocess.run(
            self.command(*words), capture_output=True, text=True, check=False, env=self.environment
        )
        if done.returncode:
            raise RuntimeError(f"{words}: exit code {done.returncode}: {done.stderr[-3000:]}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Give the environment of commands: their log is kept with the fleet."""
        return os.environ | {"XDG_STATE_HOME": str(self.directory / "state")}

    def connect(
        self, node: str, *, user: str = SUPERUSER, dbname: str = DATABASE, **options: Any
    ) -> psycopg.Connection[Any]:
        """Log in to a node, in autocommit."""
        port = next(port for port, name in self.ports().items() if name == node)
        given: dict[str, Any] = {"connect_timeout": 5, "prepare_threshold": None} | options
        where: dict[str, Any] = {"host": "127.0.0.1", "port": port, "dbname": dbname}
        return psycopg.connect(**where, user=user, autocommit=True, **given)

    def runs(self, node: str) -> bool:
        """Tell whether a server works in the node's directory, ready or not."""
        return pidfile.alive(self.data(node)) is not None

    def has_data(self, node: str) -> bool:
        """Tell whether a node has a data directory; a target has none until its clone is whole."""
        return (self.data(node) / "PG_VERSION").exists()

    def answers(self, node: str) -> bool:
        """Tell whether a node takes logins."""
        try:
            with self.connect(node, connect_timeout=3) as session:
                session.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def start(self, node: str) -> None:
        """Start the server of a node, as its machine does after a crash, if it has one."""
        if self.runs(node) or not self.has_data(node):
            return
        account = accounts.server_account(None)
        found = binaries.find(None, account=account)
        words = ["start", "-w", "-t", "30", "-s", "-D", self.data(node)]
        subprocess.run(
            [str(found.program("pg_ctl")), *map(str, words), "-l", f"{self.data(node)}.log"],
            capture_output=True,
            check=False,
            user=account,
            extra_groups=[] if account else None,
            cwd="/",
        )

    def pooler_pid(self, pooler: str) -> int | None:
        """Give the process of a pooler that runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.disk(pooler) / "pgbouncer.pid").read_text())
            os.kill(pid, 0)
            if "pgbouncer" in Path(f"/proc/{pid}/comm").read_text():
                return pid
        return None

    def start_pooler(self, pooler: str) -> None:
        """Start a pooler that does not run; raises what the sandbox does."""
        topology = self.topology()
        program = pgbouncer.program() or "pgbouncer"
        one = topology.poolers[pooler]  # type: ignore[index]  # a pooler's name
        pgbouncer.Server.of(topology, one, program).start()

    def guards(self, pooler: str) -> list[int]:
        """List the processes of the guards of a pooler."""
        begin = os.fsencode(self.disk(pooler))
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes() if process.name.isdecimal() else b""
                if begin in words and b"guard" in words:
                    found.append(int(process.name))
        return found


@contextlib.contextmanager
def running() -> Iterator[Fleet]:
    """Start a fleet; all of it ends with the `with`."""
    sweep()
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}soak-{os.getpid()}-", dir=BASE))
    directory.chmod(0o755)
    held = os.open(directory / "locking", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX)
    (directory / "locking").rename(directory / ".alive")
    fleet = Fleet(directory, disks=PRIVATE in os.environ and _mount(directory))
    try:
        fleet.migrations.mkdir()
        (fleet.migrations / "0001_writes.sql").write_text(_TABLE)
        fleet.path.write_text(_text(directory))
        fleet.call("sandbox", "up")
        fleet.call("init", "--yes")
        for node in ("a", "b"):
            with (
                contextlib.suppress(*_NOT_INSTALLED),
                fleet.connect(node) as session,
            ):
                session.execute("CREATE EXTENSION pg_repack")  # where it is installed
        yield fleet
    finally:
        before = {one: signal.signal(one, signal.SIG_IGN) for one in _ENDING}
        stop_all_below(directory)
        for node in NODES if fleet.disks else ():
            subprocess.run(["umount", "-l", fleet.disk(node)], check=False)  # noqa: S607
        shutil.rmtree(directory)
        os.close(held)
        for one, handler in before.items():
            signal.signal(one, handler)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def in_private(argv: list[str]) -> list[str]:
    """Give the command line that runs `argv` where its mounts are its own, if that can be."""
    words = ["unshare", "--mount"]
    able = os.geteuid() == 0 and shutil.which("unshare") is not None
    if able and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
        return [*words, "env", f"{PRIVATE}=1", *argv]
    return argv


def _mount(directory: Path) -> bool:
    """Give each node a disk of its own in memory; tell whether all have one."""
    account = accounts.server_account(None)
    for node in NODES:
        place = directory / "nodes" / node
        place.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={_DISK},mode=755", "none", str(place)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
        if account is not None:
            shutil.chown(place, account, account)
    return True


def _text(directory: Path) -> str:
    """Compose the topology: shards on a and b, nodes c and d are spare."""
    ports = free_run(len(NODES) + len(POOLERS))
    owned = ("0-15", "16-31", "none", "none")
    settings = ", ".join(f"{name}: '{value}'" for name, value in _SETTINGS.items())
    nodes = [
        f"  {name}: {{host: 127.0.0.1, port: {port}, shards: {shards}, "
        f"data_directory: {directory}/nodes/{name}/data, settings: {{{settings}}}}}"
        for name, port, shards in zip(NODES, ports[len(POOLERS) :], owned, strict=True)
    ]
    poolers = [
        f"  {name}: {{host: 127.0.0.1, port: {port}, "
        f"config: {directory}/nodes/{name}/pgbouncer.ini, aliases: [shard, node]}}"
        for name, port in zip(POOLERS, ports, strict=False)
    ]
    return "\n".join(
        [
            "cluster: soak",
            f"shards: {{count: {SHARDS}}}",
            (
                f"database: {{name: {DATABASE}, user: {SUPERUSER}, app_roles: [{ROLE}], "
                "migrations: migrations/, options: {connect_timeout: 5}}"
            ),
            "nodes:",
            *nodes,
            "poolers:",
            *poolers,
            f"move: {{max_pause: {MAX_PAUSE_S:g}s, retain: 0s}}",
            "",
        ]
    )
