"""`verify --check ids`: ids that their shard cannot have made, and `--deep`: all rows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks import ids
from shardctl.checks.check import View
from shardctl.checks.ids import Seen, Table, chunks
from shardctl.checks.keys import KeyLineInvalid
from shardctl.checks.verify import verify as examine
from shardctl.fanout import Silent
from shardctl.ids.layout import MILLISECONDS_PER_YEAR, Layout
from shardctl.topology import loader
from shardctl.topology.model import NodeName
from tests.fixtures.servers import local_node, local_topology
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from pathlib import Path

    from shardctl.postgres.connection import Connection
    from tests.fixtures.fleets import Fleet

OF_SHARD_6 = Layout().floor(1_400_000_000_000, 6)
OF_SHARD_2 = Layout().floor(1_400_000_000_000, 2)
YEAR_2040 = 2_208_988_800_000
KEYED = "-- shardctl: key photos.user_id"


def insert(fleet: Fleet, node: str, schema: str, id_: int, user: int) -> None:
    fleet.execute(node, f"INSERT INTO {schema}.photos VALUES ({id_}, {user})")


@pytest.fixture
def rows(healthy_fleet: Fleet) -> Fleet:
    """Give a healthy fleet with some rows in every shard."""
    for shard in range(8):
        healthy_fleet.execute(
            "a" if shard < 4 else "b",
            f"INSERT INTO shard{shard}.photos (user_id)"
            f" SELECT {shard} + 8 * i FROM generate_series(-5, 5) AS i",
        )
    return healthy_fleet


@pytest.fixture
def keyed(rows: Fleet) -> Fleet:
    """Name the key column in a migration that does nothing else."""
    rows.migration("0002_keys.sql", f"{KEYED}\n")
    rows.init()
    return rows


def test_a_healthy_fleet_has_no_findings_shallow_or_deep(rows: Fleet, keyed: Fleet) -> None:
    assert verify(rows) == []
    assert verify(keyed, deep=True) == []


def test_a_row_with_another_shards_id_is_found(rows: Fleet) -> None:
    insert(rows, "a", "shard2", OF_SHARD_6, 2)
    (finding,) = verify(rows)
    assert told([finding]) == [("ids", "other_shard", "a", (2,), "photos")]
    assert finding.actual == f"id {OF_SHARD_6} in shard 2, made for shard 6"
    assert "route --id" in finding.hint


def test_the_same_fault_on_both_nodes_is_one_finding(rows: Fleet) -> None:
    insert(rows, "a", "shard2", OF_SHARD_6, 2)
    insert(rows, "a", "shard3", OF_SHARD_6, 3)
    insert(rows, "b", "shard5", OF_SHARD_6, 5)
    assert told(verify(rows)) == [("ids", "other_shard", None, (2, 3, 5), "photos")]


def test_a_negative_id_is_found(rows: Fleet) -> None:
    insert(rows, "b", "shard7", -5, 7)
    assert told(verify(rows)) == [("ids", "negative", "b", (7,), "photos")]
    (finding,) = verify(rows, "ids", deep=True)
    assert (finding.code, finding.actual) == ("negative", "id -5 in shard 7")


def test_an_id_from_the_future_is_found(rows: Fleet) -> None:
    insert(rows, "a", "shard0", Layout().floor(YEAR_2040, 0), 8)
    assert told(verify(rows)) == [("ids", "future", "a", (0,), "photos")]
    assert told(verify(rows, "ids", deep=True)) == [("ids", "future", "a", (0,), "photos")]


def test_an_id_a_little_ahead_of_the_clock_is_well(rows: Fleet) -> None:
    rows.execute(
        "a",
        "INSERT INTO shard0.photos VALUES"
        " (shardctl.id_floor(clock_timestamp() + interval '8 s', 0), 0)",
    )
    assert verify(rows) == []


def test_keys_that_no_generator_makes_are_left_alone(rows: Fleet) -> None:
    rows.migration(
        "0002_others.sql",
        "CREATE TABLE users (user_id bigint PRIMARY KEY);"
        "CREATE TABLE counted (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, n int);"
        "CREATE TABLE pairs (id bigint DEFAULT next_id(), n int, PRIMARY KEY (n, id));"
        "CREATE TABLE small (id int PRIMARY KEY DEFAULT 1);",
    )
    rows.init()
    rows.execute(
        "a", "INSERT INTO shard1.users VALUES (1); INSERT INTO shard1.counted (n) VALUES (1)"
    )
    rows.execute("a", "INSERT INTO shard1.pairs VALUES (1, 1); INSERT INTO shard1.small VALUES (1)")
    assert verify(rows) == []
    assert verify(rows, deep=True) == []


def test_a_default_that_does_more_than_call_next_id_counts(rows: Fleet) -> None:
    rows.migration(
        "0002_more.sql",
        'CREATE TABLE "More % \'x\'" ("The ""Id""" bigint PRIMARY KEY'
        " DEFAULT coalesce(next_id(), 0));",
    )
    rows.init()
    rows.execute("b", f"INSERT INTO shard4.\"More % 'x'\" VALUES ({OF_SHARD_6})")
    expected = [("ids", "other_shard", "b", (4,), "More % 'x'")]
    assert told(verify(rows)) == expected
    assert told(verify(rows, "ids", deep=True)) == expected


@pytest.mark.parametrize("pattern", ["Shard {id}", 'it\'s "{id}" 100%s', "{id:04d}%"])
def test_strange_schema_names(fresh_fleet: Fleet, pattern: str) -> None:
    fresh_fleet.pattern = pattern
    fresh_fleet.migration("0002_keys.sql", f"{KEYED}\n")
    fresh_fleet.init()
    schemas = fresh_fleet.topology().schema_pattern
    quoted = ['"' + schemas.schema(shard).replace('"', '""') + '"' for shard in (2, 6)]
    insert(fresh_fleet, "a", quoted[0], OF_SHARD_6, 2)
    assert told(verify(fresh_fleet, "ids")) == [("ids", "other_shard", "a", (2,), "photos")]
    insert(fresh_fleet, "b", quoted[1], OF_SHARD_6, 6)
    assert told(verify(fresh_fleet, "ids", deep=True)) == [
        ("ids", "duplicate", "a", (2,), "photos")
    ]


def test_deep_counts_misplaced_rows_that_lie_between_others(keyed: Fleet) -> None:
    after = "((SELECT min(id) FROM shard2.photos) >> 23) + 1 << 23"
    for number in (6 << 10, (6 << 10) + 1):
        keyed.execute("a", f"INSERT INTO shard2.photos VALUES (({after}) + {number}, 2)")
    keyed.execute(
        "a",
        "INSERT INTO shard2.photos VALUES"
        " (shardctl.id_floor(clock_timestamp() + interval '1 s', 2), 2)",
    )
    assert verify(keyed) == []
    (finding,) = verify(keyed, deep=True)
    assert told([finding]) == [("ids", "other_shard", "a", (2,), "photos")]
    assert finding.actual.endswith("in shard 2, made for shard 6; 2 rows in all")


def test_deep_finds_ids_that_two_shards_have(keyed: Fleet) -> None:
    insert(keyed, "b", "shard6", OF_SHARD_6, 6)
    insert(keyed, "a", "shard2", OF_SHARD_6, 6)
    insert(keyed, "a", "shard2", OF_SHARD_6 + 1, 6)
    insert(keyed, "b", "shard5", 7000 << 10, 5)
    findings = verify(keyed, deep=True)
    assert told(findings) == [
        ("ids", "duplicate", "a", (2,), "photos"),
        ("ids", "other_shard", None, (2, 5), "photos"),
    ]
    assert findings[0].actual == f"id {OF_SHARD_6} in shard 2 and in shard 6"


def test_deep_finds_rows_of_other_keys(keyed: Fleet) -> None:
    keyed.execute("a", "INSERT INTO shard3.photos (user_id) VALUES (11), (-1), (-5), (12)")
    assert verify(keyed) == []
    (finding,) = verify(keyed, deep=True)
    assert told([finding]) == [("ids", "other_key", "a", (3,), "photos")]
    assert finding.actual == "key -1 in shard 3, of shard 7; 2 rows in all"


def test_the_topology_may_name_key_columns_too(rows: Fleet) -> None:
    rows.execute("a", "INSERT INTO shard3.photos (user_id) VALUES (11), (12)")
    assert verify(rows, deep=True) == []
    text = rows.write().read_text()
    rows.file.write_text(text.replace("  app_roles", "  keys: {photos: user_id}\n  app_roles"))
    report = examine(loader.load(rows.file), (), deep=True, progress=Silent())
    assert told(report.findings) == [("ids", "other_key", "a", (3,), "photos")]


def test_deep_finds_other_keys_in_tables_without_ids(rows: Fleet) -> None:
    rows.migration(
        "0002_users.sql",
        '-- shardctl: key users."User"\nCREATE TABLE users ("User" smallint PRIMARY KEY);',
    )
    rows.init()
    rows.execute("b", "INSERT INTO shard4.users VALUES (4), (12), (7)")
    (finding,) = verify(rows, deep=True)
    assert told([finding]) == [("ids", "other_key", "b", (4,), "users")]
    assert finding.actual == "key 7 in shard 4, of shard 7"


def test_misplaced_ids_are_looked_up_in_batches(
    keyed: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardctl.checks.ids_deep.BATCH", 3)
    for node, shard in (("a", 2), ("b", 6)):
        keyed.execute(
            node,
            f"INSERT INTO shard{shard}.photos"
            f" SELECT {OF_SHARD_6} + i, 6 FROM generate_series(1, 10) AS i",
        )
    (finding,) = verify(keyed, deep=True)
    assert (finding.code, finding.shards) == ("duplicate", (2,))
    assert finding.actual.endswith("; 10 rows in all")


def test_a_key_column_that_is_not_there_is_a_warning(rows: Fleet) -> None:
    rows.migration("0002_keys.sql", "-- shardctl: key photos.owner\n")
    rows.init()
    assert verify(rows) == []
    assert told(verify(rows, deep=True)) == [("ids", "key_absent", None, (), "photos.owner")]


@pytest.mark.parametrize("deep", [False, True])
def test_a_malformed_key_line_is_refused(rows: Fleet, *, deep: bool) -> None:
    rows.migration("0002_keys.sql", "SELECT 1;\n-- shardctl: key owner\n")
    rows.init()
    with pytest.raises(KeyLineInvalid, match=r"0002_keys\.sql:2"):
        verify(rows, deep=deep)


@pytest.mark.parametrize("deep", [False, True])
def test_a_table_that_goes_meanwhile_is_skipped(
    rows: Fleet, monkeypatch: pytest.MonkeyPatch, *, deep: bool
) -> None:
    insert(rows, "a", "shard2", OF_SHARD_6, 2)
    moment = ids._moment

    def drop(connection: Connection) -> tuple[int, int]:
        rows.execute("a", "DROP TABLE IF EXISTS shard1.photos")
        return moment(connection)

    monkeypatch.setattr(ids, "_moment", drop)
    assert told(verify(rows, "ids", deep=deep)) == [("ids", "other_shard", "a", (2,), "photos")]


@pytest.mark.parametrize("deep", [False, True])
def test_a_table_that_is_locked_is_told_and_the_others_are_read(
    rows: Fleet, monkeypatch: pytest.MonkeyPatch, *, deep: bool
) -> None:
    monkeypatch.setattr(ids, "LOCK_WAIT", "20ms")
    insert(rows, "a", "shard2", OF_SHARD_6, 2)
    with rows.connect("a", autocommit=False) as other:
        other.execute("LOCK TABLE shard1.photos")
        findings = verify(rows, "ids", deep=deep)
    assert told(findings) == [
        ("ids", "locked", "a", (1,), "photos"),
        ("ids", "other_shard", "a", (2,), "photos"),
    ]
    assert findings[0].severity.value == "warning"


def test_statements_take_no_more_locks_than_they_may() -> None:
    tables = [Table("s", f"t{n}", "id", locks) for n, locks in enumerate([3, 3, 3, 9, 1, 1])]
    assert [[t.name for t in chunk] for chunk in chunks(tables, 7)] == [
        ["t0", "t1"],
        ["t2"],
        ["t3"],
        ["t4", "t5"],
    ]
    many = [Table("s", "t", "id", 1)] * (ids.LARGEST_CHUNK * 2 + 1)
    assert [len(chunk) for chunk in chunks(many, 10_000)] == [ids.LARGEST_CHUNK] * 2 + [1]
    assert list(chunks([], 7)) == []


def test_the_end_of_the_layout_is_told_once(tmp_path: Path) -> None:
    nodes = [local_node(tmp_path, name, 1, range(8)) for name in "ab"]
    topology = dataclasses.replace(local_topology(tmp_path, *nodes), shard_count=8)
    last = Layout.of(topology.id).last_ms

    def judged(years: float) -> list[tuple[str, str, str]]:
        seen = Seen(int(last - years * MILLISECONDS_PER_YEAR), ())
        view = View(topology, (), {}, {NodeName(n): seen for n in "ab"}, deep=False)
        return [(f.code, f.severity.value, f.actual) for f in ids.judge(view)]

    assert judged(5.1) == []
    until = "ids last until 2046-06-27T17:00:49.496Z, for"
    assert judged(4.9) == [("years_left", "warning", f"{until} 4.9 years")]
    assert judged(-1) == [("years_left", "error", f"{until} 0.0 years")]
