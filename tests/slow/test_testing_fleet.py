"""The plugin for applications' tests, in real pytest processes."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl import testing
from shardctl.postgres import binaries, embedded

if TYPE_CHECKING:
    from tests.fixtures.fleets.applications import Application

WHERE = """
import pathlib, time
import psycopg
def test_where(shard_fleet, worker_id):
    told = [worker_id, str(shard_fleet.topology), *map(shard_fleet.dsn, shard_fleet.nodes)]
    pathlib.Path(f"{worker_id}.new").write_text("\\n".join(told))
    pathlib.Path(f"{worker_id}.new").rename(f"{worker_id}.told")
    deadline = time.monotonic() + 60
    while len(list(pathlib.Path().glob("*.told"))) < 2:
        assert time.monotonic() < deadline, "one worker does all"
        time.sleep(0.05)
    for node in shard_fleet.nodes:
        psycopg.connect(shard_fleet.dsn(node)).close()
"""

SHAPE = """
import psycopg
from shardctl.errors import Refused
from shardctl.topology import loader
import pytest
def test_shape(shard_fleet):
    assert (shard_fleet.nodes, shard_fleet.shard_count) == (("a", "b", "c"), 3)
    assert [shard_fleet.node_of(shard) for shard in range(3)] == ["a", "b", "c"]
    assert [shard_fleet.schema(shard) for shard in range(3)] == ["u000", "u001", "u002"]
    topology = loader.load(shard_fleet.topology)
    assert (topology.cluster, topology.database.name) == ("photos", "photos")
    assert topology.id.shard_bits == 12
    assert not topology.poolers
    with psycopg.connect(shard_fleet.dsn("b")) as connection:
        asked = "SELECT current_user, shardctl.id_shard(u001.next_id())"
        assert connection.execute(asked).fetchone() == ("web", 1)
    with psycopg.connect(shard_fleet.dsn("b", user="shardctl")) as connection:
        asked = "SELECT current_user, version()"
        print(connection.execute(asked).fetchone())
    unknown = "unknown node 'x' of the test fleet: its nodes are a, b, c"
    with pytest.raises(Refused, match=unknown) as refused:
        shard_fleet.dsn("x")
    assert refused.value.code == "node_not_there"
"""

ELSEWHERE = {
    "PGHOSTADDR": "127.255.255.254",
    "PGSERVICE": "production",
    "PGSSLMODE": "require",
    "PGOPTIONS": "-c default_transaction_read_only=on",
    "PGTARGETSESSIONATTRS": "standby",
    "PGDATABASE": "production",
    "PGUSER": "nobody",
    "PGPORT": "1",
}


def test_the_pages_example_passes_and_leaves_nothing(application: Application) -> None:
    assert "6 passed" in application.pytest()
    assert application.fleets() == []


def test_with_xdist_every_worker_has_a_fleet_of_its_own(application: Application) -> None:
    application.write("test_where.py", WHERE)
    # Every test twice, at about the same time.
    assert "14 passed" in application.pytest("-n", "2", "--dist", "each")
    first, second = [
        set(file.read_text().splitlines()) for file in application.directory.glob("*.told")
    ]
    assert len(first) == len(second) == 4
    assert first.isdisjoint(second)
    assert application.fleets() == []


def test_the_fleet_has_the_applications_names_and_the_size_of_the_options(
    application: Application,
) -> None:
    topology = (application.directory / "topology.yaml").read_text()
    own = "shards: {count: 16, schema: 'u{id:03d}'}\nid: {bits: {shard: 12}}"
    changed = topology.replace("shards: {count: 16}", own)
    application.write("other.yaml", changed)
    (application.directory / "topology.yaml").unlink()
    ini = "shard_fleet_topology = other.yaml\nshard_fleet_shards = 3\nshard_fleet_nodes = 5\n"
    application.write("pytest.ini", f"[pytest]\n{ini}")
    application.write("test_shape.py", SHAPE)
    application.pytest("test_shape.py")


@pytest.mark.embedded
def test_it_works_with_the_embedded_servers(application: Application) -> None:
    directory = str(list(embedded.directories())[-1])
    application.write("pytest.ini", "[pytest]\nshard_fleet_shards = 2\n")
    version = "SELECT current_setting('server_version_num')::int / 10000"
    application.write(
        "test_version.py",
        "import psycopg\n"
        "def test_version(fleet):\n"
        "    with psycopg.connect(fleet.dsn('a')) as connection:\n"
        f"        assert connection.execute({version!r}).fetchone() == (18,)\n",
    )
    application.pytest("test_version.py", environment={binaries.VARIABLE: directory})
    assert application.fleets() == []


def test_ordinary_tests_start_no_server_and_load_nothing(application: Application) -> None:
    (application.directory / "conftest.py").unlink()
    for page in application.directory.glob("test_*.py"):
        page.unlink()
    (application.directory / "topology.yaml").unlink()
    application.write(
        "test_plain.py",
        "import sys\n"
        "def test_plain():\n"
        "    assert {n for n in sys.modules if n.startswith('shardctl')} == "
        "{'shardctl', 'shardctl.testing', 'shardctl.testing.plugin'}\n"
        "    assert not {'psycopg', 'yaml', 'pydantic', 'fabric'} & set(sys.modules)\n",
    )
    # Plugins of others load what they like.
    only = ["-p", "shardctl.testing.plugin"]
    application.pytest(*only, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert "/shardctl/testing/plugin.py" in application.pytest("--trace-config")
    assert application.fleets() == []


def test_a_broken_migration_is_told_as_shardctl_does(application: Application) -> None:
    application.write("migrations/0002_broken.sql", "SELECT 1;\n\nSELECT * FROM nowhere;\n")
    said = application.pytest(code=1)
    assert "/0002_broken.sql" in said
    assert "Traceback" not in said
    assert "fleet.py" not in said
    assert "During handling" not in said
    assert said.count("6 errors") == 1
    assert application.fleets() == []


def test_a_child_of_the_process_ends_neither_servers_nor_their_directory(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(application.temporary))
    child = 0
    try:
        with testing.running(application.directory / "topology.yaml", shards=2) as fleet:
            child = os.fork()
            if child == 0:
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            for node in fleet.nodes:
                psycopg.connect(fleet.dsn(node)).close()
            assert len(application.fleets()) == 1
    except SystemExit:
        os._exit(0)
    assert application.fleets() == []
