"""What the application's role may do to the sequences that make ids: draw, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

STOPPING = [
    "SELECT setval('shard1.next_id_block', 9223372036854775807)",
    "SELECT setval('shard1.next_id_seq', 9223372036854775807)",
    "SELECT nextval('shard1.next_id_block')",
    "SELECT shardctl.open_block_at('shard1.next_id_block', 1, (1::bigint << 40) - 2)",
    "SELECT shardctl.open_block(1, '2040-01-01')",
    "SELECT shardctl.open_drawn_block('shard1.next_id_seq', 'shard2.next_id_block', 1)",
]
BOTH = "'shard1.next_id_seq', 'shard1.next_id_block'"
FORGED = [
    f"SELECT shardctl.open_drawn_block({BOTH}, 5::bigint << 20)",
    f"SELECT shardctl.next_id_of_new_block({BOTH}, 1, 0, 5::bigint << 20)",
]
DRAW = "SELECT count(DISTINCT shard1.next_id()) FROM generate_series(1, 3000)"


@pytest.mark.parametrize("statement", STOPPING)
def test_the_application_s_role_cannot_stop_ids(fleet_8: Fleet, statement: str) -> None:
    with fleet_8.connect("a", user=fleet_8.role) as session:
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.WrongObjectType)):
            session.execute(statement.encode())
        assert session.execute(DRAW).fetchone() == (3000,), "over several blocks"


def test_nor_with_a_number_that_it_has_not_drawn(fleet_8: Fleet) -> None:
    with fleet_8.connect("a", user=fleet_8.role) as session:
        for statement in FORGED:
            session.execute(statement.encode())
        [(block, drawn)] = session.execute(
            "SELECT pg_sequence_last_value('shard1.next_id_block') >> 40,"
            " pg_sequence_last_value('shard1.next_id_seq') >> 10"
        )
        assert block == drawn
        assert session.execute(DRAW).fetchone() == (3000,)


def test_what_others_may_lock_keeps_no_block_from_being_opened(fleet_8: Fleet) -> None:
    """A role without any right, by advisory locks; the application's, by what it may read."""
    fleet_8.execute("a", "CREATE ROLE stranger LOGIN")
    fleet_8.execute("a", f"GRANT CONNECT ON DATABASE {fleet_8.database} TO stranger")
    try:
        with (
            fleet_8.connect("a", user="stranger") as stranger,
            fleet_8.connect("a", user=fleet_8.role, autocommit=False) as reader,
            fleet_8.connect("a", user=fleet_8.role, options="-c lock_timeout=30s") as session,
        ):
            oid = "SELECT 'shard1.next_id_block'::regclass::oid::integer"
            [(register,)] = session.execute(oid).fetchall()
            stranger.execute("SELECT pg_advisory_lock(5942557, %s)", [register])
            with pytest.raises(psycopg.errors.InsufficientPrivilege), stranger.transaction():
                stranger.execute("LOCK TABLE shardctl.cluster IN ACCESS SHARE MODE")
            reader.execute("LOCK TABLE shardctl.cluster IN ACCESS SHARE MODE")
            for mode in ("SHARE UPDATE EXCLUSIVE", "SHARE", "ACCESS EXCLUSIVE"):
                with (
                    pytest.raises(psycopg.errors.InsufficientPrivilege),
                    reader.transaction(),
                ):
                    reader.execute(f"LOCK TABLE shardctl.cluster IN {mode} MODE".encode())
            assert session.execute(DRAW).fetchone() == (3000,)
    finally:
        fleet_8.execute("a", "DROP OWNED BY stranger; DROP ROLE stranger")
