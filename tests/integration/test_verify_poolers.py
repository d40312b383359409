"""The check `poolers`: each fault of a pooler is found once, and nothing else is told with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.fleets.pooled import AddPooler, PooledFleet
    from tests.fixtures.servers.postgres import StartServer

NodeMap = tuple[str, str, tuple[int, ...], str | None]
"""A finding's code, severity, shards and object."""


@pytest.fixture
def fleet(fleet_pooled: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler is as it should be."""
    fleet_pooled.options = "connect_timeout: 2"
    return fleet_pooled


def told(fleet: PooledFleet, *names: str) -> list[NodeMap]:
    findings = verify(fleet, *names)
    assert {(f.check, f.pooler, f.node) for f in findings} <= {("poolers", "p1", None)}
    assert all(f.hint and f.actual and f.expected for f in findings)
    return [(f.code, f.severity.value, f.shards, f.object) for f in findings]


def test_a_file_that_was_edited_or_that_nobody_has_is_one_finding(fleet: PooledFleet) -> None:
    """Which facts are what finding, unit tests tell."""
    file = fleet.pg_bouncer.databases_file
    with file.open("a") as opened:
        opened.write("mine = host=127.0.0.1 port=1 dbname=x\n")
    fleet.pg_bouncer.admin("RELOAD")
    assert told(fleet, "poolers") == [("file_differs", "error", (), str(file))]
    file.unlink()
    assert told(fleet, "poolers") == [("file_differs", "error", (), str(file))]


def test_each_state_of_an_alias_is_told_in_one_finding_of_its_kind(fleet: PooledFleet) -> None:
    pooler = fleet.pg_bouncer
    text = pooler.databases_file.read_text()
    line = re.search(r"(?m)^shard5 .*$", text)
    assert line is not None
    a, b = (f"port={fleet.servers[node].port} " for node in "ab")
    loaded = re.sub(r"(?m)^shard3 .*\n", "", text).replace(line[0], line[0].replace(b, a))
    loaded = re.sub(r"(?m)^(shard0 .*) dbname=\w+", r"\1 dbname=postgres", loaded)
    pooler.databases_file.write_text(loaded)
    pooler.admin("RELOAD")
    pooler.databases_file.write_text(text)
    with pooler.connect("shard5") as client:  # to where it is told to go
        client.execute("SELECT 1")
    held = ("shard1", "shard2", f"{fleet.database}_b")
    for alias in held:
        pooler.admin(f"PAUSE {alias}")
    pooler.admin("DISABLE shard4")
    of_aliases: list[NodeMap] = [
        ("not_loaded", "error", (0, 3, 5), "shard0, shard3, shard5"),
        ("paused", "error", (1, 2, 4, 5, 6, 7), f"{fleet.database}_b, shard1, shard2"),
        ("disabled", "error", (4,), "shard4"),
    ]
    assert told(fleet) == of_aliases
    for alias in held:
        pooler.admin(f"RESUME {alias}")
    pooler.admin("PAUSE")
    whole = [one for one in of_aliases if one[0] != "paused"]
    whole.insert(1, ("paused", "error", (), "the whole pooler"))
    assert told(fleet, "poolers") == whole


def test_pooled_sessions_are_refused_before_shards(fleet: PooledFleet) -> None:
    fleet.pg_bouncer.admin("SET pool_mode = session")
    assert told(fleet, "poolers") == [("refused", "error", (), None)]


def test_a_topology_that_says_something_untrue_of_a_pooler_is_one_finding(
    fleet: PooledFleet, pooler_for: AddPooler, pg_server: StartServer
) -> None:
    other = pooler_for(fleet, "p2")
    true = fleet.pg_bouncers[:1]

    def finding(**untrue: Any) -> Finding:
        fleet.pg_bouncers = true
        fleet.change(**untrue)
        found = verify(fleet, "poolers")
        assert [one.pooler for one in found] == ["p1"], found
        return found[0]

    login = finding(admin_user=fleet.role)
    assert (login.code, fleet.role in login.hint) == ("unreachable", True)
    assert finding(port=pg_server().port).code == "unreachable"
    file = finding(port=other.port)
    assert file.code == "refused"
    assert str(other.config) in file.actual
    user = finding(os_user="nobody-of-this-name")
    assert user.code == "refused"
    assert "nobody-of-this-name" in user.actual
