"""Servers upgraded as docs/howto/upgrade-postgresql.md says, beside clients at work."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from shardctl.sandbox.local import LocalServer
from tests.bench import moving
from tests.bench.measure import Row, milliseconds, say, seconds
from tests.fixtures.network.pages import block, commands
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.postgres.binaries import Binaries
    from tests.bench.measure import Scale
    from tests.bench.moving import Sandbox

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "upgrade-postgresql.md"
OLD, NEW = 15, 18
"""The versions of the page."""
NODES = {"a": "c", "b": "d"}
"""Old nodes, and the new ones that take their place."""
RATE = 100
"""Operations a second of each client."""
SHARDS = 16

_SECONDS = 300
_POSTGRES = "sudo -u postgres "


@dataclass
class Upgrade:
    """A fleet whose nodes are upgraded by what the page says."""

    fleet: Sandbox
    ports: Mapping[str, int]
    programs: Mapping[str, Binaries]
    said: list[str] = field(default_factory=list)
    """What each command has printed."""

    def prepare(self) -> None:
        """Do what the page does on old servers while nobody works with them."""
        for old in NODES:
            for command in commands(PAGE, "restart"):
                self._type(command.host, command.text, old)
            self._add(old)  # the load has to know all nodes from the begin

    def replace(self, old: str) -> None:
        """Do the page's steps for one old node."""
        for command in commands(PAGE, "commands"):
            self._type(command.host, command.text, old)

    def finish(self) -> None:
        """Do the page's last steps, when the old nodes are empty."""
        text = self.fleet.path.read_text()
        self.fleet.path.write_text(re.sub(rf"(?m)^  [{''.join(NODES)}]: \{{.*\n", "", text))
        for command in commands(PAGE, "end"):
            for old in NODES if "ctlcluster" in command.text else [*NODES][:1]:
                self._type(command.host, command.text, old)

    def server(self, node: str) -> LocalServer:
        """Give the server of a node, which need not be in the topology."""
        return LocalServer(
            name=node,
            host="127.0.0.1",
            port=self.ports[node],
            data_directory=self.fleet.directory / "data" / node,
            binaries=self.programs[node],
            account=accounts.server_account(None),
            settings={"wal_level": "logical"},
        )

    def _add(self, old: str) -> None:
        """Write the new node's line into the topology, as the page has it."""
        new = NODES[old]
        line = _of(block(PAGE, "node").rstrip(), old)
        line, count = re.subn(
            r"host: [\d.]+, port: \d+", f"host: 127.0.0.1, port: {self.ports[new]}", line
        )
        assert count == 1, line
        text = self.fleet.path.read_text()
        self.fleet.path.write_text(text.replace("\npoolers:", f"{line}\n\npoolers:"))

    def _type(self, host: str, text: str, old: str) -> None:
        """Do here what a command does on the page's machines; raises RuntimeError."""
        say(f"  {host}: {text} ({moving.busy()})")
        text = _of(text, old)
        if text.startswith("apt-get install "):
            assert text.endswith(f"-{NEW}"), text
        elif text.startswith(("pg_ctlcluster", "pg_createcluster")):
            self._control(text, old)
        else:
            for machine, node in (("db1", old), ("db3", NODES[old])):
                login = f"PGHOST=127.0.0.1 PGPORT={self.ports[node]} PGUSER=postgres "
                text = text.replace(f"ssh {machine} {_POSTGRES}", login)
                if machine == host:
                    text = text.replace(_POSTGRES, login)
            self.said.append(self._run(text))

    def _run(self, text: str) -> str:
        newer = self.programs[NODES["a"]].directory
        path = f"{Path(sys.executable).parent}:{newer}:{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECONDS,
            env=os.environ | {"PATH": path, "SHARDCTL_TOPOLOGY": str(self.fleet.path)},
        )
        if done.returncode:
            raise RuntimeError(f"{text}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def _control(self, text: str, old: str) -> None:
        """Make, start, restart or stop a server, as Debian's tools do."""
        words = text.split()
        one = self.server(old if int(words[1]) == OLD else NODES[old])
        if words[0] == "pg_createcluster":
            one.init(superuser="postgres", passfile=self.fleet.passfile, secret=["postgres"])
        if words[3] in ("restart", "stop"):
            one.stop(mode="fast")
        if words[3] in ("restart", "start"):
            one.start()


@contextmanager
def begun() -> Iterator[Upgrade]:
    """Give a fleet of two servers of the older version, which is not upgraded so far."""
    found = {major: binaries.of_major(major) for major in (OLD, NEW)}
    older, newer = (found[major] for major in (OLD, NEW))
    if older is None or newer is None:
        raise RuntimeError(f"PostgreSQL {OLD} and {NEW} are not both installed")
    newer = binaries.find(newer.directory, account=accounts.server_account(None))
    with moving.sandbox(SHARDS, len(NODES), 0, programs=older.directory) as fleet:
        text = fleet.path.read_text()
        fleet.path.write_text(f"{text}\nmove: {{retain: 0s}}\n")
        ports = {node: fleet.node(node).port for node in NODES}
        ports |= dict(zip(NODES.values(), free_ports(len(NODES)), strict=True))
        programs = dict.fromkeys(NODES, older) | dict.fromkeys(NODES.values(), newer)
        yield Upgrade(fleet, ports, programs)


def upgraded(aliases: str = "shard") -> tuple[Upgrade, dict[str, Any], float]:
    """Upgrade all nodes while clients work; give what a load found, and the seconds.

    Clients log in by these aliases, or by the router.
    """
    with begun() as one:
        one.prepare()
        with one.fleet.load(aliases, RATE) as load:
            began = time.monotonic()
            for old in NODES:
                one.replace(old)
            took = time.monotonic() - began
            found = load.end(0)
        one.finish()
        return one, found, took


def upgrade(scale: Scale) -> list[Row]:
    """Upgrade a fleet of 16 shards on two nodes from 15 to 18, with 8 clients at work.

    By the commands of docs/howto/upgrade-postgresql.md: six moves, `verify` between them.
    """
    del scale  # the page's commands are what they are
    one, found, took = upgraded()
    waits = [
        float(wait)
        for said in one.said
        for wait in re.findall(r"(?:clients waited at most|pause) ([\d.]+) ms", said)
    ]
    flaws = moving.flaws("the load", [found])
    return [
        Row(
            f"upgrade {len(NODES)} nodes with {SHARDS} shards from {OLD} to {NEW}",
            seconds(took),
            "",
            note=f"{len(waits)} moves, pauses of "
            + ", ".join(milliseconds(wait / 1000) for wait in waits),
        ),
        replace(flaws, name="  errors, lost, duplicates"),
        Row(
            "  longest wait on moved shards",
            f"{found['longest_moved_ms']:.1f} ms",
            "",
            note=f"median pause {milliseconds(statistics.median(waits) / 1000)}; "
            f"load held up itself: {found['held_up_ms']:.0f} ms",
        ),
    ]


def _of(text: str, old: str) -> str:
    """Let a command of the page, about nodes a and c, be about others."""
    names = {"a": old, "c": NODES[old]}
    text = re.sub(r"(--from|--to) ([ac])\b", lambda m: f"{m[1]} {names[m[2]]}", text)
    text = re.sub(r"(?m)^  c: \{", f"  {names['c']}: {{", text)
    first = {"a": 0, "b": SHARDS // 2}[old]
    return text.replace("move-shards 0 ", f"move-shards {first} ")
