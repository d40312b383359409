"""docs/howto/nodes.md, command by command, on servers of a sandbox."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.postgres import binaries
from tests.bench import moving
from tests.fixtures.network.pages import commands
from tests.fixtures.network.sandboxed import Sandboxed
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(900)

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "nodes.md"
ROW = "INSERT INTO shard{0}.photos_by_user (user_id, image_url) VALUES ({0}, 'x') RETURNING id"


class Typed(Sandboxed):
    """The page's machines: db1 to db4 are servers here, of which db1 and db2 are nodes a and b."""

    def block(self, name: str) -> str:
        """Type the commands of a block, and give all that they print."""
        return "".join(self.type(one.host, one.text) for one in commands(PAGE, name))

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
    where = f"host=127.0.0.1 port={one.port} user=postgres passfile={typed.fleet.passfile}"
    program = one.binaries.program("pg_basebackup")
    argv = [program, "-d", where, "-D", str(two.data_directory), "-R", "--checkpoint=fast"]
    Local().run(argv, user=two.account)
    two.start()
    [last] = typed.ask(5, ROW)
    with psycopg.connect(host="127.0.0.1", port=two.port, user="postgres", dbname="app") as session:
        session.autocommit = True
        seen = f"SELECT FROM shard5.photos_by_user WHERE id = {last}"
        wait_for(lambda: session.execute(seen.encode()).fetchall())
    typed.lose("db2")
    typed.block("standby")
    assert typed.fleet.node("b").port == two.port
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
