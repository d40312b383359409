"""`topology diff` and `pull`: an old file beside the map of real nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.topology import loader
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet


def test_an_old_file_gets_the_owners_of_the_map_and_keeps_its_comments(fleet_8: Fleet) -> None:
    right = loader.load(fleet_8.file)
    assert fleet_8.here("topology", "diff").returncode == 0
    fleet_8.shards = {"a": "0-1,6", "b": "2-5, 7"}
    text = fleet_8.write().read_text().replace("nodes:\n", "nodes:  # of rack 3\n")
    fleet_8.file.write_text(text)
    done = fleet_8.here_as_written("topology", "diff", "-o", "json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["differences"] == [
        {"shards": [2, 3], "file": "b", "map": "a"},
        {"shards": [6], "file": "a", "map": "b"},
    ]
    assert found["map"]["version"] == 1
    planned = fleet_8.here_as_written("topology", "pull", "--dry-run", "--detailed-exitcode")
    assert (planned.returncode, fleet_8.file.read_text()) == (2, text)
    assert fleet_8.here_as_written("topology", "pull").returncode == 2  # without a terminal
    fleet_8.file.symlink_to(fleet_8.file.rename(fleet_8.directory / "real.yaml").name)
    done = fleet_8.here_as_written("topology", "pull", "--yes")
    assert done.returncode == 0, done.stderr
    assert loader.load(fleet_8.file) == right
    assert fleet_8.file.is_symlink()
    assert "# of rack 3" in fleet_8.file.read_text()
    again = fleet_8.here_as_written("topology", "pull", "--yes", "-o", "json")
    assert json.loads(again.stdout)["differences"] == []
    assert {file.name for file in fleet_8.directory.iterdir()} == {
        "topology.yaml", "real.yaml", "migrations", "state",
    }  # fmt: skip


def test_a_node_that_the_file_lacks_and_a_fleet_that_does_not_answer_are_named(
    fleet_8: Fleet,
) -> None:
    fleet_8.shards = {"a": "0-7"}
    text = fleet_8.write().read_text()
    done = fleet_8.here_as_written("topology", "pull", "--yes", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["errors"][0]["code"]) == (1, "nodes_unlisted")
    assert "shards 4-7 to b" in done.stderr
    assert fleet_8.file.read_text() == text
    with fleet_8.at_ports(a=free_ports(1)[0]):
        done = fleet_8.here("topology", "diff", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["errors"][0]["code"]) == (1, "map_unanswered")


def test_an_old_map_takes_no_shard_from_a_node_that_does_not_answer(fleet_8: Fleet) -> None:
    fleet_8.shards = {"a": "0-1", "b": "4-7", "c": "2-3"}
    ports = dict(zip("ac", free_ports(2), strict=True))
    with fleet_8.at_ports(**ports):
        text = fleet_8.write().read_text()
        done = fleet_8.here_as_written("topology", "pull", "--yes")
        assert done.returncode == 1, done.stderr
        assert "shards 2-3 is known to a, c only" in done.stderr
        assert fleet_8.file.read_text() == text
    with fleet_8.at_ports(c=ports["c"]):
        done = fleet_8.here("topology", "pull", "--yes")
    assert done.returncode == 0, done.stderr
    owners = loader.load(fleet_8.file).owners()
    assert [shard for shard, node in owners.items() if node == "a"] == [0, 1, 2, 3]
