"""What other commands say while a move is at work: they name it, and know its clone for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_move_goes_on_and_is_aborted_only_with_the_shards_beside_it_where_the_map_has_them(
    fleet_own: Lab,
) -> None:
    fleet_own.up_to("clone", [2, 3], "c").close()
    for node in "ab":  # as a move would have, with which another copy of the file was written
        fleet_own.ask(node, "UPDATE shardctl.map SET node = 'b' WHERE shard = 0")
    for command in ("resume", "abort"):
        refused = fleet_own.here("moves", command, "--yes", "-o", "json")
        assert refused.returncode == 1, refused.stderr
        assert json.loads(refused.stdout)["errors"][0]["code"] == "ownership_differs"
    for node in "ab":
        fleet_own.ask(node, "UPDATE shardctl.map SET node = 'a' WHERE shard = 0")
        fleet_own.ask(node, "UPDATE shardctl.map SET node = 'c' WHERE shard = 2")  # its own
    # A move between others has been there since: the cutover will follow its map.
    fleet_own.ask("b", "UPDATE shardctl.cluster SET map_version = map_version + 1")
    assert fleet_own.here("moves", "resume", "--dry-run").returncode == 0
    assert fleet_own.here("moves", "abort", "--yes").returncode == 0
