"""`status` and moves: those that are not closed, and what the others left to be pruned."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from shardctl.moves.methods import METHODS
from shardctl.moves.plan import CLONE
from shardctl.moves.step import drive
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from shardctl.checks.check import Finding
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet

STATUS = ("status", "--sample", "0")
HEADER = "move   "


def shown(fleet: PooledFleet) -> str:
    """Give what people see; nothing is told beside it."""
    done = fleet.here(*STATUS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def asked(fleet: PooledFleet) -> dict[str, Any]:
    done = fleet.here(*STATUS, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lines(text: str) -> list[str]:
    """Give the lines about retired schemas."""
    return text.partition("retired schemas: ")[2].splitlines()


def retired(fleet: PooledFleet) -> list[dict[str, Any]]:
    return [one for node in asked(fleet)["nodes"] for one in node["retired"]]


def findings(fleet: MovedFleet) -> list[Finding]:
    """Give what `verify` finds of moves: not of servers for tests, and of nodes that wait."""
    others = {"settings", "poolers"}
    return [f for f in verify(fleet) if f.check not in others and f.code != "not_there"]


def since(ended: str, due: str) -> timedelta:
    return datetime.fromisoformat(due) - datetime.fromisoformat(ended)


def test_a_move_is_told_while_somebody_is_at_it_and_when_nobody_is(
    fleet_spares: MovedFleet,
) -> None:
    before = shown(fleet_spares)
    assert asked(fleet_spares)["moves"] == []
    assert HEADER not in before
    world = fleet_spares.world([2, 3], "c")
    steps = takewhile(lambda step: step.name != "cutover", METHODS[CLONE].steps)
    drive(world, list(steps), lambda _: None)

    found = asked(fleet_spares)
    (running,) = found["moves"]
    assert running["lag_bytes"] is None  # unknown for a physical slot
    assert running["wal_held_bytes"] is not None
    assert running.items() >= fleet_spares.listed()[0].items()
    assert (running["state"], running["step"], running["can"]) == ("running", "follow", [])
    # The clone is its source to the letter, and nobody is to worry about that.
    clone = next(node for node in found["nodes"] if node["name"] == "c")
    assert (clone["state"], clone["role"], clone["error"]) == ("up", "standby", None)
    (finding,) = findings(fleet_spares)
    assert told([finding]) == [("leftovers", "move_running", None, (2, 3), running["id"])]
    named_by_others(fleet_spares, running["id"])

    world.close()
    (left,) = asked(fleet_spares)["moves"]
    assert (left["state"], left["can"]) == ("unfinished", ["resume", "abort"])
    row = next(line for line in shown(fleet_spares).splitlines() if left["id"] in line[:10])
    assert row.split()[1:7] == ["unfinished", "a", "c", "2:", "2-3", "follow"]
    assert row.rstrip().endswith("resume, abort")
    (finding,) = findings(fleet_spares)
    assert told([finding]) == [("leftovers", "move_unfinished", None, (2, 3), left["id"])]
    printed = fleet_spares.here("verify", "--check", "leftovers", "--strict")
    assert (printed.returncode, left["id"] in printed.stdout) == (1, True)
    # A clone that is stopped leaves the slot alone, which holds back WAL.
    fleet_spares.execute("a", "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
    assert {f.code for f in findings(fleet_spares)} == {"move_unfinished"}

    assert fleet_spares.here("moves", "abort", "--yes").returncode == 0
    assert asked(fleet_spares)["moves"] == []
    assert shown(fleet_spares).count("\n") == before.count("\n")
    assert findings(fleet_spares) == []


def named_by_others(fleet_spares: MovedFleet, move: str) -> None:
    """See that a second move, `init` and `migrate` name the move whose clone they meet."""
    for target in "cd":
        second = fleet_spares.here("move-shards", "1", "--to", target, "--dry-run")
        assert second.returncode == 1
        assert move in second.stderr
    for command in ("init", "migrate"):
        refused = fleet_spares.here(command, "--dry-run")
        assert refused.returncode == 1
        assert move in refused.stderr


def test_an_unconfirmed_move_is_told_until_what_it_retired_is_pruned(
    fleet_spares: MovedFleet,
) -> None:
    fleet_spares.cut_over([2, 3], "c").close()
    done = fleet_spares.here("moves", "resume")
    assert done.returncode == 0, done.stdout + done.stderr
    found = asked(fleet_spares)
    (move,) = found["moves"]
    assert (move["state"], move["can"]) == ("unconfirmed", ["prune"])
    assert told(findings(fleet_spares)) == [
        ("leftovers", "move_unconfirmed", None, (2, 3), move["id"]),
        ("leftovers", "retired_due", "a", (2, 3), move["id"]),
        ("leftovers", "retired_due", "c", (0, 1), move["id"]),
    ]
    assert {node["name"]: len(node["retired"]) for node in found["nodes"]} == {
        "a": 2, "b": 0, "c": 2, "d": 0,
    }  # fmt: skip
    for one in retired(fleet_spares):
        assert (one["move"], one["ended"]) == (move["id"], move["ended"])
        assert since(one["ended"], one["due"]) == timedelta(0)
    assert any("--accept-unconfirmed" in line for line in lines(shown(fleet_spares)))

    assert fleet_spares.here("prune", "--yes", "--accept-unconfirmed").returncode == 0
    assert (asked(fleet_spares)["moves"], retired(fleet_spares)) == ([], [])
    assert HEADER not in shown(fleet_spares)
    assert "retired" not in shown(fleet_spares)
    assert findings(fleet_spares) == []
