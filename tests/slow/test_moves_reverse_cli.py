"""`moves reverse` as a user types it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def command(lab: Lab, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a command as a user does, and give what it answers."""
    done = lab.here(*words, "-o", "json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_move_can_be_reversed_for_an_hour_unless_told_otherwise(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.bare (n bigint)")
    stream = ("move-shards", "2-3", "--to", "b", "--yes")
    refused = command(fleet_own, *stream, "--dry-run", code=1)
    assert "no_replica_identity" in {one["code"] for one in refused["errors"]}
    planned = command(fleet_own, *stream, "--identity", "full", "--dry-run")
    assert any("(--identity full): shard2.bare" in note for note in planned["notes"])
    assert "can be reversed" in "".join(planned["notes"])
    with fleet_own.connect("a") as session:
        session.execute("DROP TABLE shard2.bare")
    move = command(fleet_own, *stream)["id"]
    [listed] = command(fleet_own, "moves", "list")["moves"]
    assert (listed["id"], listed["can"]) == (move, ["reverse", "finish"])
    assert listed["reverse"]["state"] == "open"
    plan = command(fleet_own, "moves", "reverse", move, "--dry-run")
    assert (plan["reverses"], plan["move"]) == (move, listed["reverse"]["move"])
    assert (plan["source"], plan["target"]) == ("b", "a")
    assert fleet_own.leads("shard2") == "b"
    command(fleet_own, "moves", "reverse", move, code=2)  # there is no terminal to ask on
    command(fleet_own, "moves", "reverse", move, "--yes")
    assert fleet_own.leads("shard2") == "a"
    command(fleet_own, "moves", "reverse", move, "--yes", code=1)


def test_migrations_of_its_shards_want_that_it_is_given_up(fleet_own: Lab) -> None:
    move = command(fleet_own, "move-shards", "2-3", "--to", "b", "--yes")["id"]
    folder = fleet_own.file.parent / "migrations"
    (folder / "0002_more.sql").write_text("CREATE TABLE more (id bigint PRIMARY KEY)")
    refused = command(fleet_own, "migrate", "--yes", code=1)
    assert move in refused["errors"][0]["hint"]
    command(fleet_own, "migrate", "--finish-reverse", "--yes")
    [listed] = command(fleet_own, "moves", "list")["moves"]
    assert (listed["id"], listed["reverse"]["state"]) == (move, "finished")
