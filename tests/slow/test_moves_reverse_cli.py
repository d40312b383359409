"""`moves reverse` and `moves finish` as a user runs them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.fixtures import commands

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.moves.own import Lab

STREAM = ("move-shards", "2-3", "--to", "b", "--yes")


def run(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.here("--topology", str(lab.file), *words)


def done(lab: Lab, *words: str) -> str:
    found = run(lab, *words)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_move_can_be_reversed_for_an_hour_unless_told_otherwise(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.bare (n bigint)")
    refused = run(fleet_own, *STREAM, "--dry-run")
    assert (refused.returncode, "--identity full" in refused.stderr) == (1, True)
    lent = ("--identity", "full", "-o", "json", "--dry-run")
    planned = json.loads(done(fleet_own, *STREAM, *lent))
    assert any("reversed for 1 h" in note for note in planned["notes"])
    assert any("(--identity full): shard2.bare" in note for note in planned["notes"])
    with fleet_own.connect("a") as session:
        session.execute("DROP TABLE shard2.bare")
    moved = run(fleet_own, *STREAM, "-o", "json")
    move, at = json.loads(moved.stdout)["id"], r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.search(
        rf"\nmove {move} is done; until {at}, `shardctl moves reverse {move}` gives the shards "
        rf"back, and `moves finish {move}` gives that up; from {at} on, `shardctl prune` frees "
        r"the space\n",
        moved.stderr,
    )
    [listed] = json.loads(done(fleet_own, "moves", "list", "-o", "json"))["moves"]
    assert (listed["id"], listed["can"]) == (move, ["reverse", "finish"])
    assert listed["reverse"]["state"] == "open"
    assert "can be reversed until" in done(fleet_own, "moves", "show", move)
    assert "can be reversed until" in done(fleet_own, "status")
    plan = json.loads(done(fleet_own, "moves", "reverse", move, "--dry-run", "-o", "json"))
    assert (plan["reverses"], plan["move"]) == (move, listed["reverse"]["move"])
    assert (plan["source"], plan["target"]) == ("b", "a")
    assert fleet_own.leads("shard2") == "b"
    asked = run(fleet_own, "moves", "reverse", move)
    assert asked.returncode == 2  # there is no terminal to ask on
    back = run(fleet_own, "moves", "reverse", move, "--yes")
    assert back.returncode == 0, back.stderr
    assert "reopen" in back.stderr
    assert fleet_own.leads("shard2") == "a"
    shown = done(fleet_own, "moves", "show", plan["move"])
    assert f"reverse of move {move}" in shown
    again = run(fleet_own, "moves", "reverse", move, "--yes")
    assert again.returncode == 1
    assert str(plan["move"]) in again.stderr


def test_finish_gives_it_up(fleet_own: Lab) -> None:
    move = json.loads(done(fleet_own, *STREAM, "-o", "json"))["id"]
    kept = json.loads(done(fleet_own, "prune", "--dry-run", "--now", "-o", "json"))["retired"]
    assert all("moves finish" in one["refused"] for one in kept)
    before = json.loads(done(fleet_own, "moves", "finish", move, "--dry-run", "-o", "json"))
    assert before["reverse"]["state"] == "open"
    after = json.loads(done(fleet_own, "moves", "finish", move, "--yes", "-o", "json"))
    assert (after["reverse"]["state"], after["can"]) == ("finished", [])
    assert done(fleet_own, "prune", "--now", "--yes")
    assert not [name for name in fleet_own.schemas("a") if "retired" in name]
    unknown = run(fleet_own, "moves", "finish", move, "--yes")
    assert (unknown.returncode, "nothing is kept" in unknown.stderr) == (1, True)
