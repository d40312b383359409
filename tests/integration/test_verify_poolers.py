"""The check `poolers`: each fault of a pooler is found once, and nothing else is told with it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from shardctl.pgbouncer import render
from tests.fixtures import offering as fixtures
from tests.fixtures.offering import examine, load_only, offer, swap
from tests.fixtures.pooled import STATS_USER, PooledFleet, offered
from tests.fixtures.servers import SUPERUSER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.pooled import AddPooler
    from tests.fixtures.servers import PgServer

Told = tuple[str, str, tuple[int, ...], str | None]
"""A finding's code, severity, shards and object."""

ALL = tuple(range(8))

healthy_databases = fixtures.healthy_databases
offering = fixtures.offering


@pytest.fixture
def fleet(offering: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler is as it should be."""
    return offering


def told(fleet: PooledFleet) -> list[Told]:
    findings = examine(fleet)
    assert {(f.check, f.pooler, f.node) for f in findings} <= {("poolers", "p1", None)}
    assert all(f.hint and f.actual and f.expected for f in findings)
    return [(f.code, f.severity.value, f.shards, f.object) for f in findings]


def test_of_a_healthy_fleet_nothing_is_told(fleet: PooledFleet) -> None:
    assert examine(fleet) == []
    done = fleet.here("verify", "--strict")
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith("all is well: 11 checks of 8 shards on 2 nodes and 1 pooler in ")
    report = json.loads(fleet.here("verify", "-o", "json").stdout)
    assert report["ok"] is True
    assert report["checks"][-1] == "poolers"
    assert report["examined"] == {"nodes": 2, "shards": 8, "poolers": 1}


def test_poolers_are_looked_at_only_when_they_are_asked_about(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.admin("DISABLE shard2")
    of_map = fleet.here("verify", "--check", "map", "-o", "json")
    assert of_map.returncode == 0, of_map.stdout
    assert json.loads(of_map.stdout)["examined"]["poolers"] == 0
    of_poolers = fleet.here("verify", "--check", "poolers", "-o", "json")
    report = json.loads(of_poolers.stdout)
    assert of_poolers.returncode == 1
    assert (report["checks"], report["examined"]["poolers"]) == (["poolers"], 1)
    [finding] = [f for f in report["findings"] if f["severity"] == "error"]
    assert (finding["pooler"], finding["node"], finding["shards"]) == ("p1", None, [2])
    listed = fleet.here("verify", "--list").stdout
    assert re.search(r"poolers +every pooler offers what the map says", listed)


def remove_file(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.databases_file.unlink()


def edit_file(fleet: PooledFleet) -> None:
    with fleet.pg_bouncer.databases_file.open("a") as file:
        file.write("mine = host=127.0.0.1 port=1 dbname=x\n")
    fleet.pg_bouncer.admin("RELOAD")


def write_file_oneself(fleet: PooledFleet) -> None:
    file = fleet.pg_bouncer.databases_file
    file.write_text(file.read_text().partition("[databases]")[2].join(("[databases]", "")))


def have_a_fallback_in_the_file(fleet: PooledFleet) -> None:
    with fleet.pg_bouncer.databases_file.open("a") as file:
        file.write("* = host=127.0.0.1 port=1\n")
    fleet.pg_bouncer.admin("RELOAD")


def empty_file(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.databases_file.write_text("")


def keep_other_aliases(fleet: PooledFleet) -> None:
    topology = fleet.topology()
    a, b = topology.nodes.values()
    # As after a move that nobody told this pooler of.
    nodes = {a.name: dataclasses.replace(a, shards=a.shards[:2]),
             b.name: dataclasses.replace(b, shards=(*a.shards[2:], *b.shards))}  # fmt: skip
    pooler = fleet.pg_bouncer
    other = dataclasses.replace(topology, nodes=nodes)
    text = render.databases(other, topology.poolers[pooler.pooler.name], 1)
    pooler.databases_file.write_text(text)
    pooler.admin("RELOAD")
    with contextlib.ExitStack() as clients:  # these connections are the old file's doing
        for alias in ("shard2", "shard6"):
            clients.enter_context(pooler.connect(alias)).execute("SELECT 1")


def load_nothing(fleet: PooledFleet) -> None:
    load_only(fleet.pg_bouncer, "")


def load_without_one(fleet: PooledFleet) -> None:
    text = fleet.pg_bouncer.databases_file.read_text()
    load_only(fleet.pg_bouncer, re.sub(r"(?m)^shard3 .*\n", "", text))


def load_to_the_other_node(fleet: PooledFleet) -> None:
    text = fleet.pg_bouncer.databases_file.read_text()
    line = re.search(r"(?m)^shard5 .*$", text)
    assert line is not None
    load_only(fleet.pg_bouncer, text.replace(line[0], swap(fleet, line[0])))
    with fleet.pg_bouncer.connect("shard5") as client:  # to where it is told to go
        client.execute("SELECT 1")


def load_another_database(fleet: PooledFleet) -> None:
    text = fleet.pg_bouncer.databases_file.read_text()
    load_only(fleet.pg_bouncer, re.sub(r"(?m)^(shard0 .*) dbname=\w+", r"\1 dbname=postgres", text))


def load_one_too_many(fleet: PooledFleet) -> None:
    text = fleet.pg_bouncer.databases_file.read_text()
    load_only(fleet.pg_bouncer, f"{text}shard8 = host=127.0.0.1 port=1 dbname=app\n")


def say(*commands: str) -> Callable[[PooledFleet], None]:
    def give(fleet: PooledFleet) -> None:
        for command in commands:
            fleet.pg_bouncer.admin(command.format(fleet.database))

    return give


def pool_sessions_before_nodes(fleet: PooledFleet) -> None:
    fleet.change(aliases=("node",))
    fixtures.load(fleet, fleet.pg_bouncer)
    fleet.pg_bouncer.admin("SET pool_mode = session")


FAULTS: dict[str, tuple[Callable[[PooledFleet], None], Told]] = {
    "the file is not there": (remove_file, ("file_missing", "error", (), "FILE")),
    "the file was changed by hand": (edit_file, ("file_edited", "error", (), "FILE")),
    "the file is somebody's own": (write_file_oneself, ("file_edited", "error", (), "FILE")),
    "the file has a fallback database": (
        have_a_fallback_in_the_file,
        ("file_edited", "error", (), "FILE"),
    ),
    "the file is empty": (empty_file, ("file_differs", "error", (), "FILE")),
    "the file is of another map": (keep_other_aliases, ("file_differs", "error", (), "FILE")),
    "nothing of the file is loaded": (
        load_nothing,
        ("not_loaded", "error", ALL, "{}_a, {}_b, shard0 and 7 more"),
    ),
    "one alias is not loaded": (load_without_one, ("not_loaded", "error", (3,), "shard3")),
    "one alias leads to the other node": (
        load_to_the_other_node,
        ("not_loaded", "error", (5,), "shard5"),
    ),
    "one alias leads to another database": (
        load_another_database,
        ("not_loaded", "error", (0,), "shard0"),
    ),
    "one alias is left over": (load_one_too_many, ("left_over", "error", (), "shard8")),
    "an alias is paused": (say("PAUSE shard2"), ("paused", "error", (2,), "shard2")),
    "a node's alias is paused": (say("PAUSE {}_b"), ("paused", "error", (4, 5, 6, 7), "{}_b")),
    "many aliases are paused": (
        say(*(f"PAUSE shard{n}" for n in range(1, 6))),
        ("paused", "error", (1, 2, 3, 4, 5), "shard1, shard2, shard3 and 2 more"),
    ),
    "the whole pooler is paused": (say("PAUSE"), ("paused", "error", (), "the whole pooler")),
    "an alias is disabled": (say("DISABLE shard4"), ("disabled", "error", (4,), "shard4")),
    "sessions are pooled before shards": (
        say("SET pool_mode = session"),
        ("refused", "error", (), None),
    ),
    "sessions are pooled before nodes": (
        pool_sessions_before_nodes,
        ("pool_mode", "warning", (), "pool_mode"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_and_nothing_else_is_told(fleet: PooledFleet, fault: str) -> None:
    breaks, (code, severity, shards, named) = FAULTS[fault]
    breaks(fleet)
    file = str(fleet.pg_bouncer.databases_file)
    name = file if named == "FILE" else named and named.format(fleet.database, fleet.database)
    assert told(fleet) == [(code, severity, shards, name)]


def test_only_a_pool_mode_is_a_warning(fleet: PooledFleet) -> None:
    pool_sessions_before_nodes(fleet)
    done = fleet.here("verify", "--strict")
    assert done.returncode == 1
    assert done.stdout.startswith("warning: poolers: pooler p1: pool_mode: session; should be: ")


def test_sessions_that_are_pooled_for_one_user_are_found_while_they_are(
    fleet: PooledFleet,
) -> None:
    pooler = fleet.pg_bouncer
    with pooler.config.open("a") as config:
        config.write(f"[users]\n{fleet.role} = pool_mode=session\n")
    pooler.admin("RELOAD")
    with pooler.connect("shard2", user=fleet.role) as client:
        client.execute("SELECT 1")
        [finding] = examine(fleet)
    assert (finding.code, finding.severity) == ("pool_mode", "warning")


def test_a_file_of_an_older_map_says_of_which(fleet: PooledFleet) -> None:
    fleet.raise_map_version()
    try:
        [finding] = examine(fleet)
    finally:
        fleet.execute_everywhere("UPDATE shardctl.cluster SET map_version = map_version - 1")
    assert finding.code == "file_differs"
    assert (finding.actual, finding.expected) == (
        "of map version 1",
        "the aliases of map version 2",
    )
    assert "`shardctl pgbouncer apply`" in finding.hint


@pytest.mark.parametrize("other", ["cluster: test", "map version: 1"])
def test_a_file_that_apply_would_not_replace_is_told_as_such(
    fleet: PooledFleet, other: str
) -> None:
    file = fleet.pg_bouncer.databases_file
    text = re.sub("checksum: .*", "checksum: ", file.read_text()).replace(other, f"{other}9")
    file.write_text(render._seal(text, render._digest(text)))
    [finding] = examine(fleet)
    assert finding.code == "file_differs"
    assert finding.actual in ("of cluster test9", "of map version 19")
    assert "--force" in finding.hint


def test_two_poolers_with_one_fault_are_two_findings(
    fleet: PooledFleet, pooler_for: AddPooler
) -> None:
    offer(fleet, pooler_for, "p2")
    for pooler in fleet.pg_bouncers:
        pooler.admin("PAUSE shard2")
    findings = examine(fleet)
    assert [(f.pooler, f.code, f.shards) for f in findings] == [
        ("p1", "paused", (2,)),
        ("p2", "paused", (2,)),
    ]


def test_databases_of_the_operators_are_none_of_our_business(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    port = fleet.servers["a"].port
    with pooler.config.open("a") as config:
        config.write(f"[databases]\nreports = host=127.0.0.1 port={port} dbname=postgres\n")
        config.write(f"* = host=127.0.0.1 port={port}\n")
    pooler.admin("RELOAD")
    with pooler.connect("reports") as client, pooler.connect("postgres") as other:
        client.execute("SELECT 1")
        other.execute("SELECT 1")
        client.close()
        pooler.admin("PAUSE reports")
        pooler.admin("DISABLE postgres")
        assert {"reports", "postgres"} <= offered(pooler).keys()
        assert told(fleet) == []


def test_a_pooler_that_is_down_is_one_finding_and_all_else_is_examined(
    fleet: PooledFleet, pooler_for: AddPooler
) -> None:
    offer(fleet, pooler_for, "p2")
    fleet.pg_bouncer.stop()
    fleet.execute("a", "CREATE SCHEMA shard99")
    try:
        done = fleet.here("verify", "-o", "json")
    finally:
        fleet.execute("a", "DROP SCHEMA shard99")
    report = json.loads(done.stdout)
    findings = [f for f in report["findings"] if f["severity"] != "note"]
    assert done.returncode == 1
    assert [(f["code"], f["node"], f["pooler"]) for f in findings] == [
        ("stray_schema", "a", None),
        ("unreachable", None, "p1"),
    ]
    assert "Connection refused" in findings[1]["actual"]
    assert findings[1]["object"] == f"127.0.0.1:{fleet.pg_bouncer.port}"
    assert report["examined"] == {"nodes": 2, "shards": 8, "poolers": 1}


def test_a_pooler_that_hangs_is_not_waited_for_for_ever(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    pooler.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        [finding] = examine(fleet)
        assert time.monotonic() - began < 10
    finally:
        pooler.signal(signal.SIGCONT)
    assert finding.code == "unreachable"
    assert "timeout" in finding.actual
    assert "hangs" in finding.hint


def test_who_may_not_log_in_to_the_console_is_told_what_to_do(fleet: PooledFleet) -> None:
    fleet.change(admin_user=fleet.role)
    [finding] = examine(fleet)
    assert (finding.code, finding.actual) == ("unreachable", "not allowed")
    assert f"add {fleet.role} to admin_users" in finding.hint


def test_a_server_that_is_no_pooler_is_a_finding(
    fleet: PooledFleet, two_servers: dict[str, PgServer]
) -> None:
    fleet.change(port=two_servers["a"].port)
    [finding] = examine(fleet)
    assert (finding.code, finding.pooler) == ("unreachable", "p1")


def test_who_may_only_look_is_told_and_sees_the_rest(fleet: PooledFleet) -> None:
    fleet.change(admin_user=STATS_USER)
    with fleet.pg_bouncer.console(admin_user=SUPERUSER) as console:
        console.execute("PAUSE shard2")
    assert told(fleet) == [
        ("refused", "error", (), None),
        ("paused", "error", (2,), "shard2"),
    ]


def test_a_pooler_that_runs_with_another_file_is_one_finding(
    fleet: PooledFleet, pooler_for: AddPooler
) -> None:
    other = pooler_for(fleet, "p2")
    fleet.pg_bouncers = fleet.pg_bouncers[:1]
    fleet.change(port=other.port)
    [finding] = examine(fleet)
    assert finding.code == "refused"
    assert finding.actual.startswith(f"it runs with {other.config}, not with ")


def test_a_file_that_is_not_included_is_one_finding(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    pooler.config.write_text(pooler.config.read_text().replace("%include", "; include"))
    pooler.admin("RELOAD")
    [finding] = examine(fleet)
    assert finding.code == "refused"
    assert "does not include" in finding.actual


def test_an_alias_that_the_operator_has_taken_is_one_finding(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    with pooler.config.open("a") as config:
        config.write("[databases]\nshard2 = host=127.0.0.1 port=1\n")
    pooler.admin("RELOAD")
    assert offered(pooler)["shard2"] == 1
    [finding] = examine(fleet)
    assert finding.code == "refused"
    assert "shard2" in finding.actual


def test_a_directory_that_is_not_there_is_one_finding(fleet: PooledFleet) -> None:
    missing = fleet.pg_bouncer.config.parent / "missing"
    fleet.change(databases_file=missing / "shards.ini")
    [finding] = examine(fleet)
    assert finding.code == "refused"
    assert finding.actual.endswith(f"{missing}: there is no such directory")


def test_a_user_that_this_machine_does_not_have_is_one_finding(fleet: PooledFleet) -> None:
    fleet.change(os_user="nobody-of-this-name")
    [finding] = examine(fleet)
    assert finding.code == "refused"
    assert "nobody-of-this-name" in finding.actual


def test_a_pooler_of_another_machine_is_looked_at_as_far_as_possible(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.admin("DISABLE shard2")
    text = fleet.write().read_text()
    fleet.file.write_text(text.replace("aliases: [shard, node]", "aliases: [shard, node], ssh: {}"))
    report = json.loads(fleet.here_as_written("verify", "-o", "json").stdout)
    findings = [f for f in report["findings"] if f["severity"] == "error"]
    assert [(f["code"], f["shards"]) for f in findings] == [("refused", []), ("disabled", [2])]
