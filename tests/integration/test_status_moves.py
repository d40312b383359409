"""`status` and moves: those that are not closed, and what the others left to be pruned."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.fixtures.fleets.verify import told

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.moves.own import Lab

STATUS = ("status", "--sample", "0")
HEADER = "move   "


def shown(fleet: Lab) -> str:
    """Give what people see; nothing is told beside it."""
    done = fleet.here(*STATUS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def asked(fleet: Lab) -> dict[str, Any]:
    done = fleet.here(*STATUS, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def retired(fleet: Lab) -> list[dict[str, Any]]:
    return [one for node in asked(fleet)["nodes"] for one in node["retired"]]


def findings(fleet: Lab) -> list[Finding]:
    """Give what `verify` finds of moves: not of servers for tests, and of nodes that wait."""
    others = {"settings", "poolers"}
    return [f for f in fleet.verify() if f.check not in others and f.code != "not_there"]


def since(ended: str, due: str) -> timedelta:
    return datetime.fromisoformat(due) - datetime.fromisoformat(ended)


def test_a_move_is_told_while_somebody_is_at_it_and_when_nobody_is(
    fleet_own: Lab,
) -> None:
    before = shown(fleet_own)
    assert asked(fleet_own)["moves"] == []
    assert HEADER not in before
    world = fleet_own.up_to("cutover", [2, 3], "c")
    found = asked(fleet_own)
    (running,) = found["moves"]
    assert running["lag_bytes"] is None  # unknown for a physical slot
    assert running["wal_held_bytes"] is not None
    listed = json.loads(fleet_own.here("moves", "list", "-o", "json").stdout)["moves"]
    assert running.items() >= listed[0].items()
    assert (running["state"], running["step"], running["can"]) == ("running", "follow", [])
    # The clone is its source to the letter, and nobody is to worry about that.
    clone = next(node for node in found["nodes"] if node["name"] == "c")
    assert (clone["state"], clone["role"], clone["error"]) == ("up", "standby", None)
    assert findings(fleet_own) == []
    named_by_others(fleet_own, running["id"])

    world.close()
    (left,) = asked(fleet_own)["moves"]
    assert (left["state"], left["can"]) == ("unfinished", ["resume", "abort"])
    row = next(line for line in shown(fleet_own).splitlines() if left["id"] in line[:10])
    assert row.split()[1:6] == ["unfinished", "a", "c", "2-3", "follow"]
    assert row.rstrip().endswith("resume, abort")
    (finding,) = findings(fleet_own)
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), left["id"])]
    printed = fleet_own.here("verify", "--check", "leftovers", "--strict")
    assert (printed.returncode, left["id"] in printed.stdout) == (1, True)
    # A clone that is stopped leaves the slot alone, which holds back WAL.
    fleet_own.ask("a", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    assert {f.code for f in findings(fleet_own)} == {"move_unfinished"}

    assert fleet_own.here("moves", "abort", "--yes").returncode == 0
    assert asked(fleet_own)["moves"] == []
    assert shown(fleet_own).count("\n") == before.count("\n")
    assert findings(fleet_own) == []


def named_by_others(fleet_own: Lab, move: str) -> None:
    """See that a second move, `init` and `migrate` name the move whose clone they meet."""
    for target in "cd":
        second = fleet_own.here("move-shards", "1", "--to", target, "--dry-run")
        assert second.returncode == 1
        assert move in second.stderr
    for command in ("init", "migrate"):
        refused = fleet_own.here(command, "--dry-run")
        assert refused.returncode == 1
        assert move in refused.stderr


def test_an_unconfirmed_move_is_told_until_what_it_retired_is_pruned(
    fleet_own: Lab,
) -> None:
    fleet_own.up_to("confirm", [2, 3], "c").close()
    done = fleet_own.here("moves", "resume")
    assert done.returncode == 0, done.stdout + done.stderr
    found = asked(fleet_own)
    (move,) = found["moves"]
    assert (move["state"], move["can"]) == ("unconfirmed", ["prune"])
    assert told(findings(fleet_own)) == [
        ("leftovers", "move_unconfirmed", None, (2, 3), move["id"]),
    ]
    assert {node["name"]: len(node["retired"]) for node in found["nodes"]} == {
        "a": 2, "b": 0, "c": 2, "d": 0,
    }  # fmt: skip
    for one in retired(fleet_own):
        assert (one["move"], one["ended"]) == (move["id"], move["ended"])
        assert since(one["ended"], one["due"]) == timedelta(0)
    assert "retired schemas: 4, " in shown(fleet_own)

    assert fleet_own.here("prune", "--yes", "--accept-unconfirmed").returncode == 0
    assert (asked(fleet_own)["moves"], retired(fleet_own)) == ([], [])
    assert HEADER not in shown(fleet_own)
    assert "retired" not in shown(fleet_own)
    assert findings(fleet_own) == []
