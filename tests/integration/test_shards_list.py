"""`shards list` against real servers: sizes, rows, rates, ids, and what cannot be asked."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state import shard_loads
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.state.shard_loads import Sample, ShardLoad
    from tests.fixtures.fleets.fleet import Fleet

PHOTOS_OF = "INSERT INTO shard{0}.photos (user_id) SELECT g FROM generate_series(1, {1}) AS g"
KEYS = {
    "shard", "schema", "node", "exists", "size_bytes", "rows_estimate", "writes_per_s",
    "scans_per_s", "oldest_id", "oldest_time", "move", "moved",
}  # fmt: skip


def read(one: Fleet, *, sample_s: float | None = None) -> dict[int, ShardLoad]:
    found = shard_loads.read(one.topology(), purpose="a test", sample_s=sample_s)
    assert found.problems == ()
    return {load.shard: load for load in found.loads}


def listed(one: Fleet, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = one.here("shards", "list", "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["shards"]
    return found


def write(one: Fleet, node: str, *statements: str) -> None:
    """Execute statements, and let the server count them at once."""
    with one.connect(node) as session:
        for statement in (*statements, "SELECT pg_stat_force_next_flush()"):
            session.execute(statement.encode())


def between(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], *, at: int = 2) -> None:
    """Do something right before the sample that is number `at`, of all that are taken."""
    take, taken, lock = shard_loads._sample, [], threading.Lock()

    def sampled(*given: Any) -> Sample:
        with lock:
            taken.append(given)
            if len(taken) == at:
                work()
        return take(*given)

    monkeypatch.setattr(shard_loads, "_sample", sampled)


def test_every_shard_is_listed_with_its_size_and_rows(fleet_8: Fleet) -> None:
    write(fleet_8, "b", PHOTOS_OF.format(5, 2000))
    found = read(fleet_8)
    assert list(found) == list(range(8))
    assert {load.node for load in found.values()} == {"a", "b"}
    [(size,)] = fleet_8.query(
        "b",
        "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class"
        " WHERE relnamespace = 'shard5'::regnamespace AND relkind IN ('r', 'S')",
    )
    there = found[5].bytes
    assert there is not None
    assert size * 0.75 <= there <= size  # without the maps of free space
    assert found[5].rows == 2000
    assert found[0].rows == 0
    assert (found[5].tps, found[5].move, found[5].moved) == (None, None, None)
    fleet_8.execute("b", "ANALYZE shard5.photos")
    assert read(fleet_8)[5].rows == 2000


def test_rates_are_those_of_the_sample(fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    between(monkeypatch, lambda: write(fleet_8, "b", PHOTOS_OF.format(5, 500)), at=3)
    found = read(fleet_8, sample_s=0.01)
    writes = found[5].writes_per_s
    assert writes is not None
    assert writes > 0
    assert [load.writes_per_s for load in found.values() if load.shard != 5] == [0.0] * 7


def test_a_reset_of_the_statistics_during_the_sample_leaves_rates_unknown(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(fleet_8, "a", PHOTOS_OF.format(1, 50))

    def reset() -> None:
        write(fleet_8, "a", "SELECT pg_stat_reset()", PHOTOS_OF.format(1, 500))

    between(monkeypatch, reset, at=3)
    found = read(fleet_8, sample_s=0.01)
    assert [found[shard].tps for shard in range(4)] == [None] * 4
    assert None not in [found[shard].tps for shard in range(4, 8)]


def test_the_sample_is_taken_only_where_it_is_wanted(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    between(monkeypatch, lambda: taken.append(1), at=1)
    assert {one["writes_per_s"] for one in listed(fleet_8)} == {None}
    assert taken == []
    assert None not in {one["scans_per_s"] for one in listed(fleet_8, "--sample", "0.01")}
    assert taken == [1]


def test_orders_and_the_first_of_them(fleet_8: Fleet) -> None:
    for shard, rows in ((2, 3000), (6, 6000)):
        write(fleet_8, "a" if shard < 4 else "b", PHOTOS_OF.format(shard, rows))
    assert [one["shard"] for one in listed(fleet_8, "--sort", "size")] == [
        6, 2, 0, 1, 3, 4, 5, 7,
    ]  # fmt: skip
    assert [one["shard"] for one in listed(fleet_8, "--top", "2")] == [6, 2]
    assert [one["shard"] for one in listed(fleet_8, "--sort", "shard", "--top", "2")] == [0, 1]
    assert [one["shard"] for one in listed(fleet_8, "--node", "b", "--sort", "rows")][:2] == [6, 4]
    assert [one["shard"] for one in listed(fleet_8, "--sort", "node")] == list(range(8))


def test_the_oldest_ids_are_read_on_request(fleet_8: Fleet) -> None:
    for _ in range(2):
        fleet_8.execute("a", PHOTOS_OF.format(1, 1))
    [(oldest,)] = fleet_8.query("a", "SELECT min(id) FROM shard1.photos")
    assert {one["oldest_id"] for one in listed(fleet_8)} == {None}
    first = listed(fleet_8, "--sort", "oldest", "--top", "1")[0]
    assert (first["shard"], first["oldest_id"]) == (1, str(oldest))
    assert first["oldest_time"].startswith("20")
    assert "oldest id" in fleet_8.here("shards", "list", "--oldest").stdout


def test_json_tsv_and_csv_have_the_same_columns(fleet_8: Fleet) -> None:
    whole = json.loads(fleet_8.here("shards", "list", "-o", "json").stdout)
    assert {*whole} == {"format", "cluster", "sample_s", "shards", "problems"}
    assert {*whole["shards"][0]} == KEYS
    header, *rows = csv.reader(io.StringIO(fleet_8.here("shards", "list", "-o", "csv").stdout))
    assert {*header} == KEYS - {"exists"}
    assert [row[0] for row in rows] == [str(shard) for shard in range(8)]
    lines = fleet_8.here("shards", "list", "-o", "tsv").stdout.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [row[:3] for row in rows]
    assert lines[0].split("\t")[5:] == [r"\N"] * 6


def test_a_node_that_is_down_is_named_and_the_rest_is_listed(fleet_8: Fleet) -> None:
    with fleet_8.at_ports(b=free_ports(1)[0]):
        assert [one["shard"] for one in listed(fleet_8, code=3)] == [0, 1, 2, 3]
        done = fleet_8.here("shards", "list")
        alone = fleet_8.here("shards", "list", "--node", "b", "-o", "json")
    assert done.returncode == 3
    assert "shardctl: node b (127.0.0.1:" in done.stderr
    assert alone.returncode == 1
    assert json.loads(alone.stdout)["errors"][0]["code"] == "node_unavailable"


def test_shards_without_tables_and_without_a_schema(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "DROP TABLE shard1.photos")
    fleet_8.execute("a", "DROP SCHEMA shard2 CASCADE")
    found = read(fleet_8, sample_s=0.01)
    assert (found[1].exists, found[1].rows, found[1].tps) == (True, 0, 0)
    assert (found[2].exists, found[2].bytes, found[2].rows, found[2].tps) == (
        False, None, None, None,
    )  # fmt: skip
    assert "missing" in fleet_8.here("shards", "list", "--oldest").stdout


def test_a_locked_table_is_not_waited_for(fleet_8: Fleet) -> None:
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN ACCESS EXCLUSIVE MODE")
        found = read(fleet_8)
    assert [shard for shard, load in found.items() if load.bytes is None] == [2]


def test_a_shard_that_two_nodes_claim_is_reported(fleet_8: Fleet) -> None:
    fleet_8.execute("b", "UPDATE shardctl.map SET node = 'b' WHERE shard = 3")
    done = fleet_8.here("shards", "list", "-o", "json")
    assert done.returncode == 1
    assert "nodes a and b each claim shards 3" in done.stderr
    assert [one["shard"] for one in json.loads(done.stdout)["shards"]].count(3) == 2


def test_the_last_move_is_shown(fleet_8: Fleet) -> None:
    for number, ended in (("5f3a9c1e", "2026-01-02"), ("6f3a9c1e", "2026-01-01")):
        fleet_8.execute(
            "b",
            "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas,"
            " retired, plan, who, started, ended) VALUES"
            f" ('{number}', 'done', 'stream', 'a', 'b', '{{5,6}}', '{{s,t}}', '{{s,t}}', '{{}}',"
            f" 'ann@ops1', '{ended}', '{ended}')",
        )
    found = listed(fleet_8)
    assert [one["move"] for one in found] == [None] * 5 + ["5f3a9c1e"] * 2 + [None]
    assert found[5]["moved"].startswith("2026-01-0")
    assert "5f3a9c1e, 2026-01-0" in fleet_8.here("shards", "list").stdout


def test_odd_names_of_schemas(new_fleet: Fleet) -> None:
    new_fleet.pattern = 'a\t"b";%s {id:03d}\'ü'
    new_fleet.init()
    assert len(read(new_fleet, sample_s=0.01)) == 8
    assert listed(new_fleet, "--oldest")[2]["schema"] == 'a\t"b";%s 002\'ü'
    lines = new_fleet.here("shards", "list", "-o", "tsv").stdout.splitlines()
    assert lines[2].split("\t")[:3] == ["2", 'a\\t"b";%s 002\'ü', "a"]
    assert 'a\\t"b";%s 002' in new_fleet.here("shards", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node", "x"], "unknown node 'x'"),
        (["--top", "0"], "'--top'"),
        (["--sort", "weight"], "'--sort'"),
        (["--sample", "soon"], "'--sample'"),
    ],
)
def test_bad_usage_contacts_no_server(fleet_8: Fleet, arguments: list[str], said: str) -> None:
    with fleet_8.at_ports(a=free_ports(1)[0], b=free_ports(1)[0]):
        done = fleet_8.here("shards", "list", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_reader_that_closes_the_pipe_gets_no_traceback(fleet_8: Fleet) -> None:
    command = command_line(fleet_8.write(), "shards", "list", "-o", "tsv")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert process.returncode != 70


def test_shards_that_no_node_claims_are_reported(fleet_8: Fleet) -> None:
    fleet_8.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard IN (0, 1)")
    done = fleet_8.here("shards", "list")
    assert done.returncode == 1
    assert "no node claims shards 0-1" in done.stderr
    only_a = fleet_8.here("shards", "list", "--node", "a")
    assert (only_a.returncode, only_a.stderr) == (0, "")
    assert ShardId(0) not in read_numbers(only_a.stdout)


def read_numbers(table: str) -> set[int]:
    """Read the first column of a table."""
    words = [line.split() for line in table.splitlines()]
    return {int(line[0]) for line in words if line and line[0].isdecimal()}
