"""The fleet under chaos: its servers, its commands, and looks at it that ask no shardctl."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import yaml
from psycopg import pq, sql

from tests.bench import fleet
from tests.chaos.history import Pause, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.bench.moving import Sandbox

SMALL_NODE, SMALL_POOLER, CLOCKED_NODE = "b", "p2", "c"
"""Where disks are filled, and the node whose server has a clock of its own."""

ROWS = (
    "SELECT coalesce(row, 'note of ' || n.row_id), coalesce(r.version, 0), coalesce(r.id, 0),"
    " coalesce(r.serial, 0), ARRAY[n.version, p.version] || k.versions"
    " FROM {0}.chaos_rows AS r FULL JOIN {0}.chaos_notes AS n ON n.row_id = r.id"
    " FULL JOIN {0}.chaos_parts AS p USING (row) FULL JOIN (SELECT row, array_agg(version)"
    " AS versions FROM {0}.chaos_keyless GROUP BY row) AS k USING (row)"
)
"""Rows that one of the tables has; version 0 where `chaos_rows` is not among them."""
_LEFT = (
    "SELECT 'slot ' || slot_name FROM pg_replication_slots WHERE slot_name LIKE 'shardctl%'"
    " UNION ALL SELECT 'publication ' || pubname FROM pg_publication WHERE pubname LIKE 'shardctl%'"
    " UNION ALL SELECT 'subscription ' || subname FROM pg_subscription"
    " UNION ALL SELECT 'prepared ' || gid FROM pg_prepared_xacts"
    " UNION ALL SELECT 'identity of ' || oid::regclass FROM pg_class WHERE relreplident = 'f'"
    " AND relkind = 'r' AND relnamespace::regnamespace::text ~ '^shard[0-9]+$'"
)
_MAP = (
    "SELECT c.map_version, c.node, array_agg(m.node ORDER BY m.shard)"
    " FROM shardctl.cluster AS c, shardctl.map AS m GROUP BY 1, 2"
)
_SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname ~ '^shard[0-9]+(__retired_.*)?$'"


@dataclass
class World:
    """A sandbox that runs, and what was seen of it."""

    sandbox: Sandbox
    first: Path
    """A copy of the topology file as it was before all moves."""
    members: set[str] = field(default_factory=set)
    """The nodes that have had a shard."""
    pauses: list[Pause] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Commands of shardctl that did not end, or by an exception that it does not expect."""
    samples: list[tuple[float, int, int]] = field(default_factory=list)
    """Once a second: time, connections of all nodes, kB of the poolers."""
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def file(self) -> Path:
        """The topology file."""
        return self.sandbox.path

    def written(self) -> dict[str, Any]:
        """Read the file without shardctl."""
        found: dict[str, Any] = yaml.safe_load(self.file.read_text())
        return found

    def nodes(self) -> dict[str, int]:
        """Give the nodes that are members of the fleet, with their ports."""
        nodes = self.written()["nodes"]
        self.members.update(n for n, one in nodes.items() if one["shards"] != "none")
        return {name: int(nodes[name]["port"]) for name in sorted(self.members)}

    def spares(self) -> list[str]:
        """List the nodes that have never had a shard."""
        return sorted(set(self.written()["nodes"]) - set(self.nodes()))

    def connect(self, node: str, *, timeout: int = 20) -> psycopg.Connection[Any]:
        """Log in to a node as its superuser."""
        port = self.nodes()[node]
        return psycopg.connect(
            host="127.0.0.1", port=port, dbname="app", user="postgres", autocommit=True,
            connect_timeout=timeout,
        )  # fmt: skip

    def ask(self, node: str, question: str, *given: Any) -> list[tuple[Any, ...]]:
        """Ask a node something; raises psycopg's errors."""
        with self.connect(node) as connection:
            return connection.execute(question.encode(), given or None).fetchall()

    def start(
        self, *words: str, at: tuple[int, str] | None = None, file: Path | None = None
    ) -> subprocess.Popen[str]:
        """Begin a command of shardctl, in a session of its own; `at` is where it stops itself."""
        argv: list[str | Path] = [fleet.SHARDCTL]
        if at is not None:
            argv = [sys.executable, "-m", "tests.chaos.stopper", str(at[0]), at[1]]
        return subprocess.Popen(
            [*argv, "--topology", file or self.file, *words],
            cwd=fleet.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, *words: str, seconds: float = 300, file: Path | None = None) -> tuple[int, str]:
        """Run a command to its end; give its exit code, and all that it said."""
        return self.finish(self.start(*words, file=file), seconds)

    def finish(self, process: subprocess.Popen[str], seconds: float) -> tuple[int, str]:
        """Wait for a command; one that does not end is killed, and its code is -9."""
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            self.broken.append(f"{process.args!r} did not end in {seconds:g} s")
        if "Traceback (most recent call last)" in errors:
            self.broken.append(f"{process.args!r}: {errors[-600:]}")
        return process.returncode, output + ("" if process.returncode == 0 else errors)

    def moves(self) -> list[dict[str, Any]]:
        """List the moves; raises RuntimeError where that fails."""
        code, said = self.call("moves", "list", "-o", "json")
        if code != 0:
            raise RuntimeError(f"moves list: exit code {code}: {said}")
        found: list[dict[str, Any]] = json.loads(said)["moves"]
        return found

    def maps(self) -> dict[str, tuple[int, list[str]]]:
        """Ask every node for its map, as version and the owner of each shard."""
        found = {}
        for name in self.nodes():
            [(version, node, owners)] = self.ask(name, _MAP)
            if node != name:
                raise RuntimeError(f"the server of node {name} calls itself {node}")
            found[name] = version, owners
        return found

    def owners(self) -> list[str]:
        """Give the owner of each shard by the newest map."""
        return max(self.maps().values())[1]

    def rows(self) -> Iterator[Row]:
        """Read all rows of all schemas of all nodes, retired ones included."""
        for node in self.nodes():
            for (schema,) in self.ask(node, _SCHEMAS):
                shard, _, retired = schema.removeprefix("shard").partition("__")
                with self.connect(node) as connection:
                    asked = sql.SQL(ROWS).format(sql.Identifier(schema))
                    for row, version, number, serial, twins in connection.execute(asked):
                        yield Row(
                            node, int(shard), row, version, number, serial, not retired,
                            tuple(twin or 0 for twin in twins),
                        )  # fmt: skip

    def left_over(self) -> list[str]:
        """List what is left of moves when all of them have ended."""
        found = [f"{node}: {what}" for node in self.nodes() for (what,) in self.ask(node, _LEFT)]
        owners = self.owners()
        for node in self.nodes():
            for (schema,) in self.ask(node, _SCHEMAS):
                shard, _, retired = schema.removeprefix("shard").partition("__")
                if not retired and owners[int(shard)] != node:
                    found.append(f"{node}: schema {schema}")
        for pooler in self.written()["poolers"]:
            found += map(str, self.directory_of_pooler(pooler).glob("*.staged"))
        return found

    def disagreements(self) -> list[str]:
        """Compare the maps of all nodes, the poolers' aliases and the topology file."""
        maps, written = self.maps(), self.written()
        owners = max(maps.values())[1]
        found = [f"map of {node}" for node, one in maps.items() if one != max(maps.values())]
        ports = self.nodes()
        for name, node in written["nodes"].items():
            if numbers(node.get("shards", "")) != {
                n for n, one in enumerate(owners) if one == name
            }:
                found.append(f"topology file: shards of {name}")
        right = {(f"shard{n}", str(ports[owner])) for n, owner in enumerate(owners)}
        for pooler in written["poolers"]:
            rows = self.console(pooler, "SHOW DATABASES")
            aliases = {(r["name"], r["port"]) for r in rows if re.fullmatch(r"shard\d+", r["name"])}
            found += [f"pooler {pooler}: {name} and {port}" for name, port in aliases ^ right]
            found += [f"pooler {pooler}: {r['name']} is paused" for r in rows if r["paused"] != "0"]
        return found

    def console(self, pooler: str, command: str) -> list[dict[str, str]]:
        """Send a pooler's console a command; raises psycopg.OperationalError."""
        port = self.written()["poolers"][pooler]["port"]
        session = pq.PGconn.connect(
            f"host=127.0.0.1 port={port} dbname=pgbouncer user=postgres connect_timeout=5".encode()
        )
        try:
            if session.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError(session.error_message.decode())
            answer = session.exec_(command.encode())
            if answer.status != pq.ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(answer.error_message.decode())
            names = [(answer.fname(n) or b"").decode() for n in range(answer.nfields)]
            return [
                {name: (answer.get_value(row, n) or b"").decode() for n, name in enumerate(names)}
                for row in range(answer.ntuples)
            ]
        finally:
            session.finish()

    def pid_of_pooler(self, pooler: str) -> int | None:
        """Give the process of a pooler that runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.directory_of_pooler(pooler) / "pgbouncer.pid").read_text())
            os.kill(pid, 0)
            return pid
        return None

    def pid_of_node(self, node: str) -> int | None:
        """Give the postmaster of a node that runs."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((self.directory_of_node(node) / "postmaster.pid").read_text().split()[0])
            os.kill(pid, 0)
            return pid
        return None

    def directory_of_node(self, node: str) -> Path:
        """Give where a node's data is."""
        return Path(self.written()["nodes"][node]["data_directory"])

    def directory_of_pooler(self, pooler: str) -> Path:
        """Give where a pooler's files are."""
        return Path(self.written()["poolers"][pooler]["config"]).parent

    @property
    def clock(self) -> Path:
        """The file with the seconds by which the clock of CLOCKED_NODE's server is wrong."""
        return self.sandbox.directory / "clocked" / "clock"

    def left_out(self) -> dict[str, str]:
        """Give the faults that this machine or user cannot have, and why."""
        disks = {
            "node_disk_filled": self.directory_of_node(SMALL_NODE).parent,
            "pooler_disk_filled": self.directory_of_pooler(SMALL_POOLER),
        }
        found = {name: "no tmpfs" for name, disk in disks.items() if not disk.is_mount()}
        return found if self.clock.exists() else found | {"clock_off": "no libfaketime"}

    def guards(self) -> list[int]:
        """Give the processes of the guards on the poolers' host."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes()
                if b"guard" in words and str(self.sandbox.directory).encode() in words:
                    found.append(int(entry.name))
        return found

    def heal(self) -> None:
        """Start what does not run; raises RuntimeError where that fails."""
        for pid in filter(
            None,
            [
                *map(self.pid_of_node, self.nodes()),
                *map(self.pid_of_pooler, self.written()["poolers"]),
            ],
        ):
            os.kill(pid, signal.SIGCONT)
        code, said = self.call("sandbox", "up")
        if code != 0:
            raise RuntimeError(f"sandbox up: exit code {code}: {said}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the poolers during the block: what is paused, how much is used."""
        with ThreadPoolExecutor() as threads:
            looks = [threads.submit(self._watch, pooler) for pooler in self.written()["poolers"]]
            looks.append(threads.submit(self._sample))
            try:
                yield
            finally:
                self._ended.set()
        for look in looks:
            look.result()

    def _watch(self, pooler: str) -> None:
        since: dict[str, tuple[float, float]] = {}
        while not self._ended.wait(0.1):
            try:
                found = self.console(pooler, "SHOW DATABASES")
            except psycopg.OperationalError:
                found = []  # a restarted pooler has no pause
            now = time.time()
            paused = {row["name"] for row in found if row["paused"] != "0"}
            for name in list(since):
                if name not in paused:
                    self.pauses.append(Pause(f"{pooler} {name}", *since.pop(name)))
            for name in paused:
                since[name] = since.get(name, (now, now))[0], now
        self.pauses += [Pause(f"{pooler} {name}", *times) for name, times in since.items()]

    def _sample(self) -> None:
        while not self._ended.wait(1):
            used = 0
            for pid in filter(None, map(self.pid_of_pooler, self.written()["poolers"])):
                with contextlib.suppress(OSError):  # it has ended just now; a zombie has no memory
                    status = Path(f"/proc/{pid}/status").read_text()
                    used += sum(map(int, re.findall(r"VmRSS:\s+(\d+)", status)))
            open_ = 0
            for node in self.nodes():
                with contextlib.suppress(psycopg.Error):
                    open_ += self.ask(node, "SELECT count(*) FROM pg_stat_activity")[0][0]
            self.samples.append((time.time(), open_, used))


def numbers(ranges: str | int) -> set[int]:
    """Read `0-7,12`."""
    found: set[int] = set()
    for part in () if ranges == "none" else str(ranges).replace(" ", "").split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def ranges(shards: Sequence[int]) -> str:
    """Write shards as an argument."""
    return ",".join(map(str, shards))


def as_mapping(history: Sequence[Sequence[str]]) -> Mapping[int, Sequence[str]]:
    """Turn maps in their order into the owners that each shard had, one after the other."""
    found: dict[int, list[str]] = {}
    for owners in history:
        for shard, owner in enumerate(owners):
            mine = found.setdefault(shard, [])
            if not mine or mine[-1] != owner:
                mine.append(owner)
    return found
