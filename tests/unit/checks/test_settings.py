"""What the check `settings` makes of a server's parameters, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.facts import A, B, healthy
from tests.fixtures.fleets.verify import told

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName
    from tests.fixtures.fleets.facts import Facts


def configure(seen: Facts, node: NodeName, **settings: str) -> None:
    there = seen.seen(node, "settings").settings
    seen.see(node, "settings", settings={**there, **settings})


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("fsync", "off", "error"),
        ("full_page_writes", "off", "error"),
        ("autovacuum", "off", "error"),
        ("track_counts", "off", "warning"),
        ("zero_damaged_pages", "on", "error"),
        ("ignore_checksum_failure", "on", "error"),
    ],
)
def test_what_loses_data_is_found(name: str, value: str, severity: str) -> None:
    seen = healthy()
    configure(seen, B, **{name: value})
    (finding,) = seen.findings()
    assert told([finding]) == [("settings", f"{name}_{value}", "b", (), name)]
    assert finding.severity.value == severity
    assert f"ALTER SYSTEM SET {name} = " in finding.hint


def test_what_prevents_moves_is_found() -> None:
    seen = healthy()
    configure(seen, A, wal_level="minimal", max_wal_senders="0")
    configure(
        seen, B, max_wal_senders="1", max_replication_slots="0", hot_standby="off",
        max_connections="20", max_locks_per_transaction="15",
    )  # fmt: skip
    seen.see(B, "settings", relations=8)
    findings = seen.findings()
    assert told(findings) == [
        ("settings", "wal_level_minimal", "a", (), "wal_level"),
        ("settings", "hot_standby_off", "b", (), "hot_standby"),
        ("settings", "wal_senders_few", "b", (), "max_wal_senders"),
        ("settings", "replication_slots_few", "b", (), "max_replication_slots"),
        ("settings", "lock_table_small", "b", (), "max_locks_per_transaction"),
    ]
    assert [f.severity.value for f in findings] == ["error"] + ["warning"] * 4
    assert findings[-1].actual == "room for 300 locks; a shard has 8 relations"
    assert "max_locks_per_transaction = 20`" in findings[-1].hint


def test_slots_in_use_are_not_free() -> None:
    seen = healthy()
    seen.see(A, "settings", slots=10)
    (finding,) = seen.findings()
    assert told([finding]) == [
        ("settings", "replication_slots_few", "a", (), "max_replication_slots")
    ]
    assert finding.actual == "10, 10 of them in use"
