"""`topology diff` and `pull` against the maps of real nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardctl.cli import topology_owners
from shardctl.topology import loader
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    import subprocess

    import pytest

    from tests.fixtures.fleets.fleet import Fleet


def owned_elsewhere(one: Fleet, *nodes: str) -> None:
    """Let maps give shards 2 and 3 of node a to node b."""
    for node in nodes or ("a", "b"):
        one.execute(node, "UPDATE shardctl.map SET node = 'b' WHERE shard IN (2, 3)")
        one.execute(node, "UPDATE shardctl.cluster SET map_version = 2")


def pull(one: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    return one.here_as_written("topology", "pull", *arguments)


def test_a_file_that_is_right(fleet_8: Fleet) -> None:
    for command in ("diff", "pull"):
        done = fleet_8.here_as_written("topology", command)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"{fleet_8.file} has the owners of map version 1\n"


def test_a_difference_is_shown_in_ranges_with_exit_code_1(fleet_8: Fleet) -> None:
    owned_elsewhere(fleet_8)
    done = fleet_8.here_as_written("topology", "diff")
    assert done.returncode == 1
    assert [line.split() for line in done.stdout.splitlines() if "2-3" in line] == [
        ["2-3", "2", "a", "b"]
    ]
    found = json.loads(fleet_8.here_as_written("topology", "diff", "-o", "json").stdout)
    assert (found["map_version"], found["same"]) == (2, False)
    assert found["differences"] == [{"shards": [2, 3], "file": "a", "map": "b"}]


def test_pull_changes_only_the_owners(fleet_8: Fleet) -> None:
    owned_elsewhere(fleet_8)
    text = f"# ours\n{fleet_8.file.read_text()}# the end\n"
    fleet_8.file.write_text(text)
    planned = pull(fleet_8, "--dry-run", "--detailed-exitcode")
    assert (planned.returncode, fleet_8.file.read_text()) == (2, text)
    asked = pull(fleet_8)
    assert (asked.returncode, fleet_8.file.read_text()) == (2, text)
    assert "add --yes" in asked.stderr
    done = pull(fleet_8, "--yes")
    assert done.returncode == 0, done.stderr
    expected = text.replace("'0-3'", "'0-1'").replace("'4-7'", "'2-7'")
    assert fleet_8.file.read_text() == expected
    assert [file.name for file in fleet_8.directory.glob("topology*")] == ["topology.yaml"]
    assert fleet_8.here_as_written("topology", "diff").returncode == 0


def test_maps_that_disagree_are_named_and_nothing_is_written(fleet_8: Fleet) -> None:
    owned_elsewhere(fleet_8, "b")
    text = fleet_8.file.read_text()
    for arguments in (("diff",), ("pull", "--yes"), ("pull", "--dry-run")):
        done = fleet_8.here_as_written("topology", *arguments)
        assert done.returncode == 1
        assert (
            "the maps of node b (version 2) and node a (version 1) disagree about the owners of "
            "shards 2-3: b on b, a on a" in done.stderr
        )
    assert fleet_8.file.read_text() == text
    shown = fleet_8.here_as_written("topology", "diff", "-o", "json").stdout
    [one] = json.loads(shown)["disagreements"]
    assert one["differences"] == [{"shards": [2, 3], "owners": ["b", "a"]}]


def test_a_node_that_is_down(fleet_8: Fleet) -> None:
    owned_elsewhere(fleet_8)
    with fleet_8.at_ports(b=free_ports(1)[0]):
        fleet_8.write()
        text = fleet_8.file.read_text()
        seen = fleet_8.here_as_written("topology", "diff")
        refused = pull(fleet_8, "--yes")
        assert fleet_8.file.read_text() == text
    assert (seen.returncode, refused.returncode) == (3, 1)
    assert "2-3" in seen.stdout
    assert "node b (127.0.0.1:" in seen.stderr
    assert "node b (127.0.0.1:" in refused.stderr


def test_an_open_move_is_left_to_write_the_file_itself(fleet_8: Fleet) -> None:
    owned_elsewhere(fleet_8)
    fleet_8.execute(
        "a",
        "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired,"
        " plan, who) VALUES ('5f3a9c1e', 'claimed', 'stream', 'a', 'b', '{2,3}', '{s,t}',"
        " '{s,t}', '{}', 'ann@ops1')",
    )
    done = pull(fleet_8, "--yes")
    assert done.returncode == 1
    assert "move 5f3a9c1e of shards 2-3 (a to b, started by ann@ops1)" in done.stderr


def test_what_changes_during_the_question_is_refused(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned_elsewhere(fleet_8)
    text = fleet_8.file.read_text()

    def edited(question: str, *, yes: bool) -> None:
        del question, yes
        fleet_8.file.write_text(f"{text}# another operator\n")

    monkeypatch.setattr(topology_owners, "confirm", edited)
    done = pull(fleet_8, "--yes")
    assert done.returncode == 1
    assert "changed after this command read it" in done.stderr
    assert fleet_8.file.read_text() == f"{text}# another operator\n"

    def moved(question: str, *, yes: bool) -> None:
        del question, yes
        for node in ("a", "b"):
            fleet_8.execute(node, "UPDATE shardctl.map SET node = 'b' WHERE shard = 1")

    monkeypatch.setattr(topology_owners, "confirm", moved)
    done = pull(fleet_8, "--yes")
    assert "the map changed after the difference was shown" in done.stderr
    monkeypatch.undo()
    assert pull(fleet_8, "--yes").returncode == 0
    assert loader.load(fleet_8.file).nodes["a"].shards == (0,)  # type: ignore[index]  # NodeName
