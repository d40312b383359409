"""docs/howto/nodes.md and upgrade-postgresql.md, command by command, on servers of a sandbox."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from shardctl.sandbox.local import LocalServer
from tests.bench import moving
from tests.fixtures.network.pages import block, commands
from tests.fixtures.servers.postgres import PATIENCE_S, free_ports, local_node, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.postgres.binaries import Binaries
    from tests.bench.moving import Sandbox

pytestmark = pytest.mark.timeout(900)

PAGES = Path(__file__).parents[2] / "docs" / "howto"
_POSTGRES = "sudo -u postgres "
ROW = "INSERT INTO shard{0}.photos_by_user (user_id, image_url) VALUES ({0}, 'x') RETURNING id"


@dataclass(frozen=True)
class Typed:
    """Machines db1 and so on, by whose names the rest is given."""

    fleet: Sandbox
    ports: Mapping[str, int]
    nodes: Mapping[str, str]
    """The nodes that they are or become."""
    programs: Mapping[str, Binaries]

    def server(self, machine: str) -> LocalServer:
        """Give the server of a machine, which need not be in the topology."""
        directory, settings = self.fleet.directory, {"wal_level": "logical"}
        return LocalServer(
            local_node(directory, machine, self.ports[machine], range(0), settings=settings),
            data_directory=directory / "data" / self.nodes[machine],
            binaries=self.programs[machine],
            account=accounts.server_account(None),
        )

    def create(self, machine: str) -> None:
        """Make an empty server, as the page has it by its reference to another one."""
        passfile = self.fleet.passfile
        self.server(machine).init(superuser="postgres", passfile=passfile, secret=["postgres"])

    def lose(self, machine: str) -> None:
        """Let a machine be destroyed."""
        one = self.server(machine)
        one.stop(mode="immediate")
        shutil.rmtree(one.data_directory)

    def type(self, host: str, text: str) -> str:
        """Do here what a command does on its machine, and give what it prints."""
        words = text.split()
        if words[0] == "pg_createcluster":
            self.create(host)
        elif words[0] == "pg_ctlcluster":
            if words[3] in ("restart", "stop"):
                self.server(host).stop(mode="fast")
            if words[3] in ("restart", "start"):
                self.server(host).start()
        elif words[0] != "apt-get":
            return self._run(host, text)
        return ""

    def _run(self, host: str, text: str) -> str:
        for machine, port in self.ports.items():
            login = f"PGHOST=127.0.0.1 PGPORT={port} PGUSER=postgres "
            text = text.replace(f"ssh {machine} {_POSTGRES}", login)
            if machine == host:
                text = text.replace(_POSTGRES, login)
            address = f"10.0.0.{machine[-1]}"
            text = text.replace(f"--host {address}", f"--host 127.0.0.1 --port {port}")
            text = text.replace(f"{address}, port: 5432", f"127.0.0.1, port: {port}")
        text = text.replace("/backup/", f"{self.fleet.directory}/")
        newest = max(self.programs.values(), key=lambda one: one.major).directory
        path = f"{Path(sys.executable).parent}:{newest}:{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/bash", "-e", "-u", "-o", "pipefail", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=5 * PATIENCE_S,
            cwd=self.fleet.directory,
            env=os.environ | {"PATH": path, "SHARDCTL_TOPOLOGY": str(self.fleet.path)},
        )
        assert done.returncode == 0, f"{text}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def block(self, name: str) -> str:
        """Type the commands of a block, and give all that they print."""
        return "".join(self.type(one.host, one.text) for one in commands(PAGES / "nodes.md", name))

    def prepare(self, machine: str) -> None:
        """Start an empty server."""
        self.create(machine)
        self.server(machine).start()

    def ask(self, shard: int, statement: str) -> list[int]:
        """Ask the node that has a shard, and give the first column."""
        owner = self.fleet.topology().owners()[shard]  # type: ignore[index]  # a number
        with self.fleet.connect(owner) as session:
            return [one for one, *_ in session.execute(statement.format(shard).encode())]


def streaming(text: str, _directory: Path) -> str:
    """Let a topology's nodes have what streamed moves need, and keep no retired copies."""
    nodes = re.sub(r"(?m)(data_directory: [^}]*)\}$", r"\1, settings: {wal_level: logical}}", text)
    return f"{nodes}\nmove: {{retain: 0s}}\n"


@pytest.fixture
def typed() -> Iterator[Typed]:
    with moving.sandbox(8, 2, 0, prepare=streaming) as fleet:
        ports = {"db1": fleet.node("a").port, "db2": fleet.node("b").port}
        ports |= dict(zip(("db3", "db4"), free_ports(2), strict=True))
        nodes = {"db1": "a", "db2": "b", "db3": "db3", "db4": "db4"}
        programs = binaries.find(None, account=accounts.server_account(None))
        made = Typed(fleet, ports, nodes, dict.fromkeys(ports, programs))
        for shard in range(8):
            made.ask(shard, ROW)
        yield made


def test_nodes_are_added_and_retired(typed: Typed) -> None:
    typed.prepare("db3")
    assert "node c is a member" in typed.block("add")
    assert len(typed.fleet.node("c").shards) > 1
    typed.prepare("db4")
    typed.block("hot")
    assert typed.fleet.node("d").shards == (5,)
    newest = json.loads(typed.fleet.call("moves", "list", "-o", "json"))["moves"][0]["id"]
    typed.fleet.call("moves", "finish", newest, "--yes")
    assert "to add it again: shardctl node add b --host 127.0.0.1" in typed.block("retire")
    assert [*typed.fleet.topology().nodes] == ["a", "c", "d"]
    assert [
        typed.ask(shard, "SELECT user_id FROM shard{}.photos_by_user") for shard in range(8)
    ] == [[shard] for shard in range(8)]
    typed.fleet.call("verify", "--strict")


def test_a_lost_node_without_shards_is_removed(typed: Typed) -> None:
    typed.prepare("db3")
    port = str(typed.ports["db3"])
    typed.fleet.call("node", "add", "c", "--host", "127.0.0.1", "--port", port, "--yes")
    typed.lose("db3")
    assert "proves that it owns no shards" in typed.block("gone")
    assert [*typed.fleet.topology().nodes] == ["a", "b"]


def test_a_lost_node_is_replaced_by_its_standby(typed: Typed) -> None:
    one, two = typed.server("db2"), typed.server("db4")
    two.data_directory.mkdir(mode=0o700)
    if two.account is not None:
        shutil.chown(two.data_directory, two.account)
    where = f"host=127.0.0.1 port={one.node.port} user=postgres passfile={typed.fleet.passfile}"
    program = one.binaries.program("pg_basebackup")
    argv = [program, "-d", where, "-D", str(two.data_directory), "-R", "--checkpoint=fast"]
    Local().run(argv, user=two.account)
    two.start()
    [last] = typed.ask(5, ROW)
    with psycopg.connect(
        host="127.0.0.1", port=two.node.port, user="postgres", dbname="app"
    ) as session:
        session.autocommit = True
        seen = f"SELECT FROM shard5.photos_by_user WHERE id = {last}"
        wait_for(lambda: session.execute(seen.encode()).fetchall())
    typed.lose("db2")
    typed.block("standby")
    assert typed.fleet.node("b").port == two.node.port
    assert last in typed.ask(5, "SELECT id FROM shard{}.photos_by_user")


def test_a_lost_node_and_a_damaged_shard_come_back_from_a_dump(typed: Typed) -> None:
    every = "SELECT id FROM shard{}.photos_by_user ORDER BY id"
    typed.block("dump")
    before = {shard: typed.ask(shard, every) for shard in range(8)}
    lost = typed.ask(5, ROW)
    typed.ask(5, "DELETE FROM shard{}.photos_by_user RETURNING 1")
    typed.block("shard")
    assert typed.ask(5, every) == before[5]
    lost += typed.ask(5, ROW)
    typed.prepare("db4")
    typed.lose("db2")
    typed.block("backup")
    assert {shard: typed.ask(shard, every) for shard in range(8)} == before
    assert not {*typed.ask(5, ROW)} & {*lost, *before[5]}


# A newer version

UPGRADE = PAGES / "upgrade-postgresql.md"
OLD, NEW = 15, 18
"""The versions of the page."""
NODES = {"a": "c", "b": "d"}
"""Old nodes, and the new ones that take their place."""
SHARDS = 16
RATE = 100
"""Operations a second of each client."""


@pytest.mark.embedded
def test_the_page_upgrades_a_fleet_under_load() -> None:
    older, newer = (binaries.of_major(major) for major in (OLD, NEW))
    if older is None or newer is None:
        pytest.skip(f"PostgreSQL {OLD} and {NEW} are not both installed here")
    newer = binaries.find(newer.directory, account=accounts.server_account(None))
    programs = {"db1": older, "db3": newer}
    said: list[str] = []
    with moving.sandbox(SHARDS, len(NODES), 0, programs=older.directory) as fleet:
        fleet.path.write_text(f"{fleet.path.read_text()}\nmove: {{retain: 0s}}\n")
        pairs = {
            old: Typed(
                fleet,
                {"db1": fleet.node(old).port, "db3": free_ports(1)[0]},
                {"db1": old, "db3": new},
                programs,
            )
            for old, new in NODES.items()
        }

        def follow(name: str, *olds: str) -> None:
            for old in olds:
                said.extend(
                    pairs[old].type(one.host, _of(one.text, old)) for one in commands(UPGRADE, name)
                )

        for old, pair in pairs.items():
            follow("restart", old)
            _add(fleet, old, pair.ports["db3"])  # the load has to know all nodes from the begin
        with fleet.load("shard", RATE) as load:
            follow("commands", *NODES)
            found = load.end(0)
        text = fleet.path.read_text()
        fleet.path.write_text(re.sub(rf"(?m)^  [{''.join(NODES)}]: \{{.*\n", "", text))
        follow("end", "a")
        pairs["b"].server("db1").stop(mode="fast")
    flaws = ("lost", "duplicates", "misplaced", "astray", "stale", "unserved", "errors")
    assert {flaw: found[flaw] for flaw in flaws if found[flaw]} == {}
    assert found["acknowledged"]["inserts"] > 0
    assert sorted(found["moved"]) == list(range(SHARDS))
    assert sum(" is done; " in one for one in said) == 4


def _add(fleet: Sandbox, old: str, port: int) -> None:
    """Write the new node's line into the topology, as the page has it."""
    line = _of(block(UPGRADE, "node").rstrip(), old)
    line, count = re.subn(r"host: [\d.]+, port: \d+", f"host: 127.0.0.1, port: {port}", line)
    assert count == 1, line
    text = fleet.path.read_text()
    fleet.path.write_text(text.replace("\npoolers:", f"{line}\n\npoolers:"))


def _of(text: str, old: str) -> str:
    """Let a command of the page, about nodes a and c, be about others."""
    names = {"a": old, "c": NODES[old]}
    text = re.sub(r"(--from|--to) ([ac])\b", lambda m: f"{m[1]} {names[m[2]]}", text)
    text = re.sub(r"(?m)^  c: \{", f"  {names['c']}: {{", text)
    return text.replace("move-shards 0 ", f"move-shards {0 if old == 'a' else SHARDS // 2} ")
