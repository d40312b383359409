"""What the check `settings` makes of a server's parameters, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.fleets.facts import A, B, healthy
from tests.fixtures.fleets.verify import told

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName
    from tests.fixtures.fleets.facts import Facts


def configure(seen: Facts, node: NodeName, **settings: str) -> None:
    there = seen.seen(node, "settings").settings
    seen.see(node, "settings", settings={**there, **settings})


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
