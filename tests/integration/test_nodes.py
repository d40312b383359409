"""`node add` and `node remove`: a server joins and leaves, and which servers are refused."""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.errors import Refused
from shardctl.fanout import Silent
from shardctl.moves import service
from shardctl.moves.plan import STREAM, Options
from shardctl.provision.observe import check_version
from shardctl.topology import loader
from tests.fixtures.fleets.fleet import open_move
from tests.fixtures.fleets.pooled import offered
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.clones import rules
from tests.fixtures.servers.postgres import free_ports
from tests.integration.test_dry_runs import FREEZE, THAW, locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.servers.postgres import PgServer, StartServer


@pytest.fixture
def fleet_joined(fleet_pooled: PooledFleet, pg_server: StartServer) -> PooledFleet:
    """Give a fleet of nodes a and b with comments in its file, and a server c beside it."""
    fleet_pooled.servers = {**fleet_pooled.servers, "c": pg_server()}
    text = fleet_pooled.write().read_text()
    text = text.replace("nodes:\n", "nodes:  # of rack 3\n")
    fleet_pooled.file.write_text(text.replace("poolers:", "  # more to come\n\npoolers:"))
    return fleet_pooled


def both(fleet: PooledFleet, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """Give a dry run and the run, which end alike, and return the run."""
    text = fleet.file.read_text()
    dry = fleet.here_as_written("node", *arguments, "--dry-run", **environment)
    assert fleet.file.read_text() == text
    done = fleet.here_as_written("node", *arguments, "--yes", **environment)
    assert dry.returncode == done.returncode, (dry.stderr, done.stderr)
    assert done.returncode == 0 or dry.stderr == done.stderr
    return done


def refused(fleet: PooledFleet, *arguments: str) -> str:
    """Give the code of the refusal, with which nothing has changed."""
    text = fleet.file.read_text()
    done = both(fleet, *arguments, "-o", "json")
    assert done.returncode in (1, 2), done.stderr
    assert fleet.file.read_text() == text
    return str(json.loads(done.stdout)["errors"][0]["code"])


def added(fleet: PooledFleet, *more: str) -> tuple[str, ...]:
    return "add", "c", "--host", "127.0.0.1", "--port", str(fleet.servers["c"].port), *more


def test_a_server_joins_and_leaves_and_the_file_keeps_its_comments(
    fleet_joined: PooledFleet,
) -> None:
    fleet, text = fleet_joined, fleet_joined.file.read_text()
    port, alias = fleet.servers["c"].port, f"{fleet.database}_c"
    arguments = added(fleet, "--with", "settings: {work_mem: 8MB}")
    done = both(fleet, *arguments, SUDO_USER="ann")
    assert done.returncode == 0, done.stderr
    line = f"  c: {{host: 127.0.0.1, port: {port}, shards: none, settings: {{work_mem: 8MB}}}}\n"
    assert fleet.file.read_text() == text.replace("  # more", f"{line}  # more")
    assert fleet.query("c", "SELECT count(*) FROM shardctl.map") == [(8,)]
    assert offered(fleet.pg_bouncer)[alias] == port
    assert fleet.here_as_written("init").stdout.startswith("nothing to do")
    assert refused(fleet, *arguments) == "node_known"
    done = both(fleet, "remove", "c")
    assert done.returncode == 0, done.stderr
    assert "map version 1 of a, b, and its own map and schemas prove" in done.stderr
    assert fleet.file.read_text() == text
    assert alias not in offered(fleet.pg_bouncer)
    recorded = (
        "SELECT command, who LIKE '%(sudo by ann)' FROM shardctl.event WHERE command LIKE 'node %'"
    )
    assert fleet.query("b", recorded) == [("node add", True), ("node remove", False)]
    again = shlex.split(done.stderr.rpartition("to add it again: shardctl ")[2])
    done = fleet.here_as_written(*again, "--yes")
    assert done.returncode == 0, done.stderr
    assert dict(loader.load(fleet.file).nodes)["c"].settings == {"work_mem": "8MB"}  # type: ignore[index]


def test_a_server_that_does_not_fit_is_not_added(fleet_joined: PooledFleet) -> None:
    fleet = fleet_joined
    nowhere = ("add", "c", "--host", "127.0.0.1", "--port", str(free_ports(1)[0]))
    assert refused(fleet, *nowhere) == "node_unavailable"
    assert refused(fleet, *added(fleet, "--with", "colour: red")) == "topology_problem"
    more = "ssh: {}}\n  d: {host: 10.0.0.4, port: 5432, shards: none"
    assert refused(fleet, *added(fleet, "--with", more)) == "scalar_not_editable"
    with locked(fleet):
        assert refused(fleet, *added(fleet)) == "node_locked"
    with fleet.servers["c"].connect() as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(fleet.database)))
    fleet.execute("c", "CREATE SCHEMA shard3")
    assert refused(fleet, *added(fleet)) == "node_not_empty"
    gives = "UPDATE shardctl.map SET node = '{}' WHERE shard = 3"
    with given(fleet, "ab", gives.format("c"), gives.format("a")):
        assert refused(fleet, *added(fleet)) == "ownership_differs"  # by a file without c
    fleet.execute("c", "DROP SCHEMA shard3")
    fleet.migration("0002_likes.sql", "CREATE TABLE likes (id bigint);")
    assert refused(fleet, *added(fleet)) == "init_pending"


def test_a_move_that_was_planned_before_a_node_joined_does_not_begin(
    fleet_joined: PooledFleet,
) -> None:
    """It would take the node's alias from the poolers, and could not write the file at its end."""
    before = loader.load(fleet_joined.file)
    decided = service.plan(before, [0], "b", Options(5.0, 0.0), method=STREAM)
    assert both(fleet_joined, *added(fleet_joined)).returncode == 0
    with pytest.raises(Refused) as caught:
        service.start(before, decided, Silent(), lambda _: None)
    assert caught.value.code == "topology_changed"
    assert service.read(before).entries == ()


def test_what_fails_behind_the_file_is_finished_by_init(fleet_joined: PooledFleet) -> None:
    fleet = fleet_joined
    with fleet.servers["c"].connect() as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(fleet.database)))
    fleet.execute("c", FREEZE)
    done = fleet.here_as_written("node", *added(fleet), "--yes", "-o", "json")
    codes = [one["code"] for one in json.loads(done.stdout)["errors"]]
    assert (done.returncode, codes[-1]) == (3, "init_unfinished"), done.stderr
    fleet.execute("c", THAW)
    done = fleet.here_as_written("init")
    assert done.returncode == 0, done.stderr
    assert offered(fleet.pg_bouncer)[f"{fleet.database}_c"] == fleet.servers["c"].port


@contextmanager
def given(fleet: PooledFleet, nodes: str, statement: str, undo: str) -> Iterator[None]:
    for node in nodes:
        fleet.execute(node, statement)
    yield
    for node in nodes:
        fleet.execute(node, undo)


REVERSIBLE = '{"reverse": "0b6aea6d", "options": {"keep_reverse_s": 3600, "retain_s": 0}}'


def test_a_node_that_is_not_proved_empty_is_not_removed(fleet_joined: PooledFleet) -> None:
    fleet = fleet_joined
    assert both(fleet, *added(fleet)).returncode == 0
    assert refused(fleet, "remove", "a") == "node_not_empty"
    assert refused(fleet, "remove", "c", "--gone") == "node_answers"
    for schema, code in (("shard0", "node_not_empty"), ("x__retired_5f3a9c1e", "retired_left")):
        with given(fleet, "c", f"CREATE SCHEMA {schema}", f"DROP SCHEMA {schema}"):
            assert refused(fleet, "remove", "c") == code
    gives = "UPDATE shardctl.map SET node = '{}' WHERE shard = 0"
    with (
        given(fleet, "c", gives.format("c"), gives.format("a")),
        given(fleet, "c", "CREATE SCHEMA shard0", "DROP SCHEMA shard0"),
    ):
        done = both(fleet, "remove", "c")  # by a file from before shard 0 moved to c
        assert (done.returncode, "drop" in done.stderr) == (1, False), done.stderr
        assert "use the newest topology file" in done.stderr
    with fleet.connect("a") as session:
        open_move(session, "5f3a9c1e", way=("a", "c"))
    assert refused(fleet, "remove", "c") == "move_unfinished"
    fleet.execute("a", f"UPDATE shardctl.move SET state = 'done', plan = '{REVERSIBLE}'")
    assert refused(fleet, "remove", "c") == "reverse_open"
    fleet.execute("a", "DELETE FROM shardctl.move")
    port = f"port: {fleet.servers['c'].port}"
    fleet.file.write_text(fleet.file.read_text().replace(port, f"port: {free_ports(1)[0]}"))
    assert refused(fleet, "remove", "c") == "node_unproved"
    with given(fleet, "ab", gives.format("c"), gives.format("a")):
        assert refused(fleet, "remove", "c", "--gone") == "ownership_differs"
    done = both(fleet, "remove", "c", "--gone")
    assert done.returncode == 0, done.stderr
    assert [*loader.load(fleet.file).nodes] == ["a", "b"]
    assert f"{fleet.database}_c" not in offered(fleet.pg_bouncer)
    assert refused(fleet, "add", "d", *added(fleet)[2:]) == "node_unfit"  # it is c


def test_a_blank_server_at_a_nodes_address_proves_nothing(fleet_joined: PooledFleet) -> None:
    fleet = fleet_joined
    assert both(fleet, *added(fleet)).returncode == 0
    for statement in ("DROP DATABASE {} WITH (FORCE)", "CREATE DATABASE {}"):
        with fleet.servers["c"].connect() as session:
            session.execute(sql.SQL(statement).format(sql.Identifier(fleet.database)))
        assert refused(fleet, "remove", "c") == "node_unproved"
    done = both(fleet, "remove", "c", "--gone")
    assert done.returncode == 0, done.stderr
    assert "has no map; map version 1 of a, b proves" in done.stderr


SECRET = "s3cret-of-the-test"  # noqa: S105  # a test's own


@pytest.fixture
def apart(pg_server: StartServer) -> PgServer:
    """Give a server on which no fleet is."""
    return pg_server()


def untouched(one: Fleet, node: str) -> bool:
    with one.servers[node].connect() as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_database WHERE datname = %s", (one.database,)
        ).fetchone()
    return found == (0,)


def test_a_wrong_password_is_said_and_never_shown(
    new_fleet: Fleet, apart: PgServer, tmp_path: Path
) -> None:
    password = sql.SQL("ALTER ROLE postgres PASSWORD {}")
    with apart.connect() as connection:
        connection.execute(password.format(sql.Literal(SECRET)))
    new_fleet.servers = {"a": new_fleet.servers["a"], "b": apart}
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:*:wrong-" + SECRET)
    passfile.chmod(0o600)
    with rules(apart, "host all all 127.0.0.1/32 scram-sha-256\n"):
        given = {"PGPASSFILE": str(passfile)}
        new_fleet.write()
        wrong = new_fleet.here_as_written("--verbose", "init", **given)
        none = new_fleet.here_as_written("--verbose", "init", PGPASSFILE="/nonexistent")
        passfile.write_text("*:*:*:*:" + SECRET)
        right = new_fleet.here_as_written("--verbose", "init", **given)
    with apart.connect() as connection:
        connection.execute(password.format(sql.NULL))
    assert (wrong.returncode, none.returncode, right.returncode) == (1, 1, 0), right.stderr
    assert "PGPASSFILE" in wrong.stderr
    logs = "".join(f.read_text() for f in (tmp_path / "state").rglob("*.log"))
    assert logs
    for text in (wrong.stderr, wrong.stdout, none.stderr, right.stderr, right.stdout, logs):
        assert SECRET not in text


def test_a_standby_is_refused(new_fleet: Fleet, apart: PgServer) -> None:
    signal = apart.server.data_directory / "standby.signal"
    apart.stop()
    signal.touch()
    apart.start()
    new_fleet.servers = {"a": new_fleet.servers["a"], "b": apart}
    try:
        with raises_code("node_unfit") as refused:
            new_fleet.init()
    finally:
        apart.stop()
        signal.unlink()
        apart.start()
    assert "primary" in refused.value.hint
    assert untouched(new_fleet, "a")


def test_a_server_older_than_14_is_refused() -> None:
    check_version("a", 140_000, "14.0")
    with raises_code("node_unfit"):
        check_version("a", 130_022, "13.22")
