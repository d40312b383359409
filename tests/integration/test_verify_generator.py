"""`verify`: whatever makes ids is as shardctl makes it, in every shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.ids import generator
from tests.fixtures.fleets.verify import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

DIFFERING = "shardctl.id_time, shardctl.id_shard, shardctl.id_sequence"


def test_a_generator_that_only_the_topology_has_is_one_finding_a_node(fleet_8: Fleet) -> None:
    fleet_8.generator = "classic"
    assert [f[:3] for f in told(verify(fleet_8))] == [
        ("identity", "differs", "a"),
        ("identity", "differs", "b"),
    ]


def replaced(shard: int, body: str) -> str:
    """Write a statement that gives a shard another next_id()."""
    literal = generator.quote_literal(body)
    return (
        f"CREATE OR REPLACE FUNCTION shard{shard}.next_id() RETURNS bigint LANGUAGE sql"
        f" AS {literal};"
    )


def test_each_fault_is_one_finding_and_nothing_else_is_told(fleet_8: Fleet) -> None:
    fleet_8.execute(
        "a",
        # The body is checked when it is made, so what it names has to be there.
        "CREATE SCHEMA shard5; CREATE SEQUENCE shard5.next_id_seq MINVALUE 0 START 0;"
        "CREATE SEQUENCE shard5.next_id_block MINVALUE 0 START 0;"
        + replaced(2, generator.wrapper_body("shard5", 5))
        + "DROP SCHEMA shard5 CASCADE;"
        # Two things to repair: init does not bring back the default that CASCADE dropped.
        "DROP FUNCTION shard0.next_id() CASCADE; DROP SEQUENCE shard1.next_id_block;"
        f"REVOKE USAGE ON SEQUENCE shard3.next_id_seq FROM {fleet_8.role};"
        + replaced(3, "SELECT 1::bigint"),
    )
    fleet_8.execute(
        "b",
        replaced(6, generator.wrapper_body("shard6", 4))
        + replaced(7, "SELECT 1::bigint")
        + "DROP SEQUENCE shard5.next_id_seq;"
        f"REVOKE ALL ON shardctl.map FROM {fleet_8.role};"
        "DROP FUNCTION shardctl.id_time(bigint);"
        "CREATE OR REPLACE FUNCTION shardctl.id_shard(id bigint) RETURNS integer LANGUAGE sql"
        " IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT 1';"
        "CREATE OR REPLACE FUNCTION shardctl.id_sequence(id bigint) RETURNS bigint LANGUAGE sql"
        " IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT 1::bigint'",
    )
    found = verify(fleet_8)
    assert told(found) == [
        ("generator", "function_differs", "b", (), DIFFERING),
        ("generator", "grants_differ", "b", (), fleet_8.role),
        ("generator", "grants_differ", None, (3,), fleet_8.role),
        ("generator", "next_id_differs", None, (0,), "next_id()"),
        ("generator", "next_id_differs", None, (2, 3, 6, 7), "next_id()"),
        ("generator", "sequence_differs", None, (1,), "next_id_block"),
        ("generator", "sequence_differs", None, (5,), "next_id_seq"),
        ("structure", "column_differs", None, (0,), "photos.id"),
    ]
