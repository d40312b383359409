"""A fleet with a pooler for benches of moves: what operators would call, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.fanout import Silent
from shardctl.postgres import hosted
from shardctl.sandbox import servers
from shardctl.topology import loader
from shardctl.topology.build import PASSFILE
from tests.bench import fleet
from tests.bench.measure import Row, say, timed
from tests.fixtures.servers.postgres import free_run, new_directory, stop_all_below, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.topology.model import Node, Topology

CLIENTS = 8
"""Of every load."""

_ALL_ALIASES = "aliases: [shard, node]"
_RETIRED = r"SELECT nspname FROM pg_namespace WHERE nspname LIKE '%\_\_retired\_%'"
_SUMS = """
SELECT format('SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %%I.%%I AS t',
              schemaname, tablename)
FROM pg_tables WHERE schemaname = ANY (%s) ORDER BY 1
"""
_NO_LOCKS = "out of shared memory"
_LOAD_S = 600
"""Seconds after which a load ends that nobody has ended."""
_SEGMENTS = 5
"""PostgreSQL's `min_wal_size`, which is what a checkpoint keeps at least for later."""
_BEGINS_S = 120.0
"""Until a load has made its tables, which are as many as shards."""


@dataclass(frozen=True, slots=True)
class Scripted:
    """A move by a program of the benches; times in seconds."""

    pause: float
    """From the first PAUSE to the last RESUME, as the program tells it."""
    spans: dict[str, float]
    """The sub-steps of the cutover, in their order."""


@dataclass(frozen=True, slots=True)
class Moved(Scripted):
    """A move that was done by shardctl, by its journal."""

    id: str
    began: dict[str, float]
    """When each step began, as `time.time()` tells it."""
    steps: dict[str, float]
    took: float
    """The whole process, Python's start included."""
    peak_kb: int
    report: dict[str, Any]


@dataclass(slots=True)
class Traffic:
    """A load that runs as a process of its own."""

    process: subprocess.Popen[bytes]
    output: Path
    told: Path
    began: float

    def end(self, lasting: float) -> dict[str, Any]:
        """Let it go on until so many seconds of it are over, then give its report.

        Raises RuntimeError where there is none.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.began + lasting - time.monotonic()))
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait()
        if code not in (0, 1):  # 1: it has found something, which its report tells
            raise RuntimeError(f"sandbox traffic: exit code {code}: {self.said()}")
        found: dict[str, Any] = json.loads(self.output.read_text())
        return found

    def said(self) -> str:
        """Give the last that it said."""
        return self.told.read_text()[-2000:]

    def has_begun(self) -> bool:
        """Tell whether its first second is over; raises RuntimeError when it ended before."""
        if self.process.poll() is not None:
            raise RuntimeError(
                f"sandbox traffic ended with {self.process.returncode}: {self.said()}"
            )
        return " operations " in self.told.read_text()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Running servers of a topology that moves change, and their pooler."""

    directory: Path
    path: Path

    @property
    def passfile(self) -> Path:
        """The file with the superuser's password, which `sandbox up` has made."""
        return self.directory / "data" / PASSFILE

    def topology(self) -> Topology:
        """Read the file as it is now."""
        return loader.load(self.path)

    def node(self, name: str) -> Node:
        return next(node for node in self.topology().nodes.values() if node.name == name)

    def call(self, *words: str) -> str:
        """Run shardctl to its end and give its output; raises RuntimeError when it fails."""
        return fleet.run([fleet.SHARDCTL, "--topology", self.path, *words]).stdout

    def connect(self, name: str) -> psycopg.Connection[Any]:
        """Log in to a node as the superuser, in autocommit."""
        node, database = self.node(name), self.topology().database.name
        return psycopg.connect(
            host=node.host, port=node.port, dbname=database, user="postgres", autocommit=True
        )

    def settle(self) -> None:
        """Write out what earlier work left dirty, in the servers and in the kernel.

        And let each server have segments of WAL to use again, as one has that was not made just
        now: where it has none, it makes one, and whoever commits meanwhile waits for that.
        """
        for state in servers.status(self.topology()):
            if state.state == "up":
                with self.connect(state.node.name) as connection:
                    for _ in range(_SEGMENTS):
                        connection.execute("SELECT pg_logical_emit_message(false, 'bench', '')")
                        connection.execute("SELECT pg_switch_wal()")
                    connection.execute("CHECKPOINT")
        os.sync()

    def move(self, *words: str) -> Moved:
        """Move shards by the command, and read what its journal says; raises RuntimeError."""
        argv: list[str | Path] = [fleet.SHARDCTL, "--topology", self.path, "move-shards", *words]
        told, took, peak = fleet.watched([*argv, "--yes", "-o", "json"])
        move = json.loads(told)["id"]
        shown = json.loads(self.call("moves", "show", move, "-o", "json"))
        if shown["state"] != "done":
            raise RuntimeError(f"move {move} is {shown['state']}")
        steps = {one["name"]: one for one in shown["steps"]}
        began = {
            name: datetime.fromisoformat(one["started"]).timestamp() for name, one in steps.items()
        }
        seconds = {name: one["elapsed_ms"] / 1000 for name, one in steps.items()}
        report = shown["report"]
        return Moved(
            id=move,
            began=began,
            steps=seconds,
            pause=report["pause_ms"] / 1000,
            spans={name: ms / 1000 for name, ms in report["timeline"]},
            took=took,
            peak_kb=peak,
            report=report,
        )

    def script(self, target: str, *shards: int, name: str, method: str) -> Scripted:
        """Move shards by a program of the benches; raises RuntimeError."""
        argv: list[str | Path] = [sys.executable, "-m", f"tests.bench.{name}", method, self.path]
        told = json.loads(fleet.run([*argv, target, *map(str, shards)]).stdout)
        spans = {name: ms / 1000 for name, ms in told["timeline"]}
        return Scripted(told["pause_ms"] / 1000, spans)

    def remove(self, name: str) -> None:
        """Stop a node's server, and delete its data directory, so that a clone can be put there."""
        node = self.node(name)
        if node.data_directory is None:
            raise RuntimeError(f"node {name} has no data_directory")
        hosted.find(node, node.data_directory).stop()
        shutil.rmtree(node.data_directory)

    def prune(self) -> float:
        """Drop all that moves have retired, by the command; give its seconds.

        Raises RuntimeError when a schema is left, or the locks of a server ran out.
        """
        took = timed(lambda: self.call("prune", "--yes"))()
        for state in servers.status(self.topology()):
            if state.state == "up":
                with self.connect(state.node.name) as connection:
                    left = connection.execute(_RETIRED).fetchall()
                if left:
                    raise RuntimeError(f"node {state.node.name}: not pruned: {left[:3]}")
        for log in (self.directory / "data").glob("*.log"):
            if _NO_LOCKS in log.read_text(errors="replace"):
                raise RuntimeError(f"{log.name}: {_NO_LOCKS}")
        return took

    @contextlib.contextmanager
    def load(
        self, aliases: str = "shard", rate: int | None = None, *, words: Sequence[str] = ()
    ) -> Iterator[Traffic]:
        """Begin a load in a session of its own; give it at work.

        Each client does at most `rate` operations a second; None is as quick as answers come.
        `words` are the options of a load that has no such clients.
        Linux shares processors out among sessions (`sched_autogroup`). In one session with the
        commands that are measured, as no application is with its operator, the load would wait
        whenever a Python program starts, be it `shardctl --help`.
        """
        held = Path(tempfile.mkdtemp(dir=self.directory))
        argv: list[str | Path] = [fleet.SHARDCTL, "--topology", self.path, "sandbox", "traffic"]
        argv += ["--seconds", f"{_LOAD_S}s", "--aliases", aliases]
        argv += words or ["--clients", str(CLIENTS)]
        argv += ["-o", "json", *(["--rate", str(rate)] if rate else [])]
        with (held / "output").open("wb") as output, (held / "told").open("wb") as told:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=told,
                start_new_session=True,
            )
        try:
            traffic = Traffic(process, held / "output", held / "told", 0.0)
            wait_for(traffic.has_begun, seconds=_BEGINS_S)
            traffic.began = time.monotonic() - 1
            yield traffic
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def sandbox(
    shards: int,
    nodes: int,
    spare: int,
    *,
    aliases: Sequence[str] = ("shard", "node"),
    programs: Path | None = None,
    prepare: Callable[[str, Path], str] = lambda text, _: text,
) -> Iterator[Sandbox]:
    """Start servers with PostgreSQL's own settings and a pooler, and make them a fleet.

    `programs` has those of the servers; None is what `sandbox up` finds. `prepare` may change the
    topology's text, and the migrations in the directory.
    """
    with new_directory("bench-", fleet.undisturbed()) as directory:
        one = Sandbox(directory, directory / "topology.yaml")
        shutil.copytree(fleet.ROOT / "migrations", directory / "migrations")
        port = free_run(1 + nodes + spare).start
        text = fleet.rendered(directory, shards=shards, nodes=nodes, spare=spare, port=port)
        text = text.replace(_ALL_ALIASES, f"aliases: [{', '.join(aliases)}]")
        if programs is not None:
            text = re.sub(
                r"(?m)(data_directory: [^}]*)\}$", rf"\1, bin_directory: {programs}}}", text
            )
        one.path.write_text(prepare(text, directory), encoding="utf-8")
        try:
            one.call("sandbox", "up")
            one.call("init", "--yes")
            with pytest.MonkeyPatch.context() as environment:
                environment.setenv("PGPASSFILE", str(one.passfile))
                yield one
        finally:
            with fleet.undisturbed():
                try:
                    servers.down(one.topology(), Silent(), delete=False)
                finally:
                    stop_all_below(directory)
                    for disk in filter(Path.is_mount, directory.iterdir()):
                        fleet.run(["umount", "-l", disk])


def sum_by_hand(
    fleet: Sandbox,
    moved: Moved,
    source: str,
    target: str,
    schemas: Sequence[str],
    *,
    sessions: int = 1,
) -> float:
    """Sum up all moved tables on both nodes at the same time; give the seconds of the slower."""
    names = {target: schemas, source: [f"{schema}__retired_{moved.id}" for schema in schemas]}
    sums: dict[str, list[Any]] = {source: [], target: []}

    def ask(node: str, part: int) -> None:
        with fleet.connect(node) as session:
            queries = session.execute(_SUMS, [list(names[node])]).fetchall()[part::sessions]
            sums[node] += [session.execute(query).fetchone() for (query,) in queries]

    began = time.perf_counter()
    with ThreadPoolExecutor(2 * sessions) as threads:
        asked = [threads.submit(ask, node, part) for node in names for part in range(sessions)]
        for one in asked:
            one.result()
    took = time.perf_counter() - began
    if sorted(sums[source]) != sorted(sums[target]):
        raise RuntimeError("the sums differ")
    return took


def flaws(name: str, loads: Sequence[dict[str, Any]]) -> Row:
    """Make the row of what loads have found wrong: errors, lost and duplicate rows, and others."""
    errors = sum(one["count"] for load in loads for one in load["errors"].values())
    others = ("lost", "duplicates", "misplaced", "astray", "stale")
    found = {"errors": errors} | {flaw: sum(load[flaw] for load in loads) for flaw in others}
    wrong = sum(found.values()) + sum(len(load["unserved"]) for load in loads)
    written = sum(load["acknowledged"]["inserts"] for load in loads)
    for load in loads:
        for code, one in load["errors"].items():
            say(f"  {one['count']} times {code}: {one['first']}")
    return Row(
        f"  {name}: errors, lost, duplicates",
        ", ".join(str(found[flaw]) for flaw in ("errors", "lost", "duplicates")),
        "",
        target="0, 0, 0",
        met=not wrong,
        note=f"{written:,} inserts acknowledged",
    )


def busy() -> str:
    """Tell how busy the machine has been in the last minute."""
    return f"load average {os.getloadavg()[0]:.1f}"
