"""`shards list`: sizes and rows of every shard, from real servers."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

ROWS = "INSERT INTO shard{0}.photos (id, user_id) SELECT g, g FROM generate_series(1, {1}) AS g"


def listed(fleet: Fleet, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = fleet.here("shards", "list", "-o", "json", "--sample", "0", *arguments)
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["shards"]
    return found


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [one["shard"] for one in found]


def test_shards_are_listed_by_number_size_rows_and_node(fleet_8: Fleet) -> None:
    fleet_8.execute("b", ROWS.format(5, 5000))
    fleet_8.execute("a", ROWS.format(2, 3000))
    fleet_8.execute("a", "ANALYZE shard2.photos")
    found = listed(fleet_8)
    assert numbers(found) == [*range(8)]
    sizes = {one["shard"]: one["size_bytes"] for one in found}
    status = json.loads(fleet_8.here("status", "--sample", "0", "-o", "json").stdout)
    of_status = {
        int(s): n for node in status["nodes"] for s, n in node["shard_sizes_bytes"].items()
    }
    assert sizes == of_status
    assert (found[2]["schema"], found[2]["node"], found[2]["rows_estimate"]) == (
        "shard2",
        "a",
        3000,
    )
    assert found[2]["writes_per_s"] is found[2]["scans_per_s"] is None
    assert numbers(listed(fleet_8, "--sort", "size", "--top", "2")) == [5, 2]
    assert numbers(listed(fleet_8, "--sort", "rows", "--top", "1")) == [2]
    assert numbers(listed(fleet_8, "--sort", "node", "--node", "b")) == [4, 5, 6, 7]
    printed = fleet_8.here("shards", "list", "--sample", "0", "-o", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [int(row["size_bytes"]) for row in rows] == list(sizes.values())
    assert rows[0]["writes_per_s"] == ""


def test_what_cannot_be_measured_is_named_and_the_rest_is_listed(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "DROP SCHEMA shard1 CASCADE")
    done = fleet_8.here("shards", "list", "--sample", "0")
    assert done.returncode == 0
    assert "shards 1 are missing on the nodes" in done.stderr
    with fleet_8.at_ports(b=free_ports(1)[0]):
        found = listed(fleet_8, "--sort", "size", code=3)
    assert sorted(numbers(found)[3:]) == [1, 4, 5, 6, 7]
    assert {one["size_bytes"] for one in found[3:]} == {None}
    assert fleet_8.here("shards", "list", "--node", "z").returncode == 2
