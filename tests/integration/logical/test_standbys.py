"""Standbys of a stream's source, by slot and by `synchronized_standby_slots`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import standbys

if TYPE_CHECKING:
    from tests.fixtures.servers.streams import Streamed

SLOT = "of_standby"


def test_a_slot_that_was_never_used_is_nobodys_to_promote(streamed: Streamed) -> None:
    streamed.source.execute("SELECT pg_create_physical_replication_slot(%s)", [SLOT])
    try:
        assert standbys.expected(streamed.source) == frozenset()
        streamed.source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        streamed.source.execute("SELECT pg_create_physical_replication_slot(%s, true)", [SLOT])
        assert standbys.away(streamed.source) == {SLOT}
    finally:
        streamed.source.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
