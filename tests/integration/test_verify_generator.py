"""`verify`: whatever makes ids is as shardctl makes it, in every shard."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.findings import Severity
from shardctl.ids import generator
from tests.fixtures.verifying import told, verify

if TYPE_CHECKING:
    from tests.fixtures.fleets import Fleet
    from tests.fixtures.rolled_back import RolledBack


@pytest.fixture
def fleet(rolled_back: RolledBack) -> RolledBack:
    """Give a healthy fleet some of whose shards may draw ids."""
    rolled_back.own_sequences("a", 1, 2)
    rolled_back.own_sequences("b", 6)
    return rolled_back


BLOCK = 1 << 40  # of a register, with the default layout


def draw(fleet: Fleet | RolledBack, node: str, shard: int, count: int) -> None:
    """Draw ids as an application does."""
    fleet.execute(node, f"SELECT count(shard{shard}.next_id()) FROM generate_series(1, {count})")


def test_a_healthy_fleet_has_no_finding_before_and_after_ids_were_drawn(fleet: RolledBack) -> None:
    assert fleet.verify() == ()
    draw(fleet, "a", 1, 5000)
    fleet.execute("a", "SELECT shardctl.open_block(1), shardctl.open_block(2)")
    assert fleet.verify() == ()


def test_init_mends_a_grant_and_changes_the_generator(healthy_fleet: Fleet) -> None:
    role = healthy_fleet.role
    healthy_fleet.execute("a", f"REVOKE USAGE ON SEQUENCE shard3.next_id_seq FROM {role}")
    assert len(verify(healthy_fleet)) == 1
    for kind in ("strict", "classic"):
        healthy_fleet.generator = kind
        healthy_fleet.init()
        draw(healthy_fleet, "a", 1, 10)
        assert verify(healthy_fleet) == []
    # Classic ids do not use the register.
    draw(healthy_fleet, "a", 2, 5000)
    assert verify(healthy_fleet) == []
    healthy_fleet.execute("a", f"SELECT setval('shard2.next_id_block', {9 * BLOCK})")
    assert verify(healthy_fleet) == []


def test_a_generator_that_only_the_topology_has_is_one_finding_a_node(fleet: RolledBack) -> None:
    there = fleet.topology
    other = dataclasses.replace(there, id=dataclasses.replace(there.id, generator="classic"))
    assert [f[:3] for f in told(fleet.verify(topology=other))] == [
        ("identity", "generator_differs", "a"),
        ("identity", "generator_differs", "b"),
    ]


def test_next_id_of_another_shard_is_told_with_its_number(fleet: RolledBack) -> None:
    body = generator.wrapper_body("shard5", 5)
    # The body is checked when it is made, so what it names has to be there.
    fleet.execute(
        "a",
        "CREATE SCHEMA shard5; CREATE SEQUENCE shard5.next_id_seq MINVALUE 0 START 0;"
        "CREATE SEQUENCE shard5.next_id_block MINVALUE 0 START 0;"
        "CREATE OR REPLACE FUNCTION shard2.next_id() RETURNS bigint LANGUAGE sql"
        f" AS {generator.quote_literal(body)}; DROP SCHEMA shard5 CASCADE",
    )
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "other_shard", None, (2,), "next_id()")]
    assert finding.actual == "makes ids of shard 5"
    assert "shardctl init" in finding.hint


def test_next_id_with_another_number_and_its_own_sequences_is_told_so_too(
    fleet: RolledBack,
) -> None:
    body = generator.wrapper_body("shard6", 4)
    fleet.execute(
        "b",
        "CREATE OR REPLACE FUNCTION shard6.next_id() RETURNS bigint LANGUAGE sql"
        f" AS {generator.quote_literal(body)}",
    )
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "other_shard", None, (6,), "next_id()")]
    assert finding.actual == "makes ids of shard 4"


def test_another_next_id_in_shards_of_both_nodes_is_one_finding(fleet: RolledBack) -> None:
    for node, shard in (("a", 1), ("b", 7)):
        fleet.execute(
            node,
            f"CREATE OR REPLACE FUNCTION shard{shard}.next_id() RETURNS bigint LANGUAGE sql"
            " AS 'SELECT 1::bigint'",
        )
    assert told(fleet.verify()) == [("generator", "next_id_differs", None, (1, 7), "next_id()")]


def test_a_missing_next_id_takes_defaults_with_it(fleet: RolledBack) -> None:
    fleet.execute("a", "DROP FUNCTION shard1.next_id() CASCADE")
    # Two things to mend: init does not bring back the default that CASCADE dropped.
    assert told(fleet.verify()) == [
        ("generator", "next_id_missing", None, (1,), "next_id()"),
        ("structure", "column_differs", None, (1,), "photos.id"),
    ]


@pytest.mark.parametrize("name", ["next_id_seq", "next_id_block"])
def test_a_missing_sequence_is_one_finding(fleet: RolledBack, name: str) -> None:
    draw(fleet, "a", 1, 3000)
    fleet.execute("a", f"DROP SEQUENCE shard1.{name}")
    assert told(fleet.verify()) == [("generator", "sequence_missing", None, (1,), name)]


@pytest.mark.parametrize(
    ("change", "actual"),
    [
        ("CACHE 20", "CACHE 20"),
        ("INCREMENT 2 CYCLE", "INCREMENT 2, CYCLE"),
        ("AS integer", "MAXVALUE 2147483647, AS integer"),
        ("SET UNLOGGED", "UNLOGGED"),
    ],
)
def test_a_sequence_that_draws_otherwise_is_one_finding(
    fleet: RolledBack, change: str, actual: str
) -> None:
    fleet.execute("b", f"ALTER SEQUENCE shard5.next_id_seq {change}")
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "sequence_differs", None, (5,), "next_id_seq")]
    assert finding.actual == actual


def test_a_revoked_grant_is_named(fleet: RolledBack) -> None:
    fleet.execute("a", f"REVOKE USAGE ON SEQUENCE shard3.next_id_seq FROM {fleet.role}")
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "not_granted", None, (3,), "next_id_seq")]
    assert finding.actual == f"{fleet.role} lacks USAGE on next_id_seq"
    assert finding.hint == "run `shardctl init`"


def test_all_that_a_role_lacks_is_one_finding(fleet: RolledBack) -> None:
    fleet.execute(
        "b",
        f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA shard4, shard7 FROM {fleet.role};"
        f"REVOKE USAGE ON SCHEMA shard4, shard7 FROM {fleet.role};"
        "ALTER DEFAULT PRIVILEGES IN SCHEMA shard4, shard7"
        f" REVOKE ALL ON TABLES FROM {fleet.role};",
    )
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "not_granted", None, (4, 7), None)]
    assert finding.actual == (
        f"{fleet.role} lacks USAGE on schema; SELECT, UPDATE, USAGE on next_id_block;"
        " SELECT, UPDATE, USAGE on next_id_seq; ON TABLES on default privileges"
    )


def test_grants_on_schema_shardctl_are_the_nodes(fleet: RolledBack) -> None:
    fleet.execute("b", f"REVOKE ALL ON shardctl.map FROM {fleet.role}")
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "state_not_granted", "b", (), fleet.role)]
    assert finding.actual == "lacks SELECT on shardctl.map"


def test_a_role_that_is_not_there_is_one_finding_a_node(fleet: RolledBack) -> None:
    there = fleet.topology
    database = dataclasses.replace(there.database, app_roles=("nobody_of_this_name",))
    other = dataclasses.replace(there, database=database)
    assert told(fleet.verify("generator", topology=other)) == [
        ("generator", "role_missing", node, (), "nobody_of_this_name") for node in "ab"
    ]


def test_shared_functions_are_the_nodes(fleet: RolledBack) -> None:
    fleet.execute(
        "b",
        "DROP FUNCTION shardctl.id_time(bigint);"
        "CREATE OR REPLACE FUNCTION shardctl.id_shard(id bigint) RETURNS integer LANGUAGE sql"
        " IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT 1';"
        "CREATE OR REPLACE FUNCTION shardctl.id_sequence(id bigint) RETURNS bigint LANGUAGE sql"
        " IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT 1::bigint'",
    )
    assert told(fleet.verify()) == [
        ("generator", "function_missing", "b", (), "shardctl.id_time"),
        ("generator", "function_differs", "b", (), "shardctl.id_shard, shardctl.id_sequence"),
    ]


@pytest.mark.parametrize("drawn", [0, 10, 3000])
def test_a_counter_that_was_set_back_is_an_error_and_the_hint_mends_it(
    fleet: RolledBack, drawn: int
) -> None:
    draw(fleet, "a", 2, 5 * 1024)
    fleet.execute("a", f"SELECT setval('shard2.next_id_seq', {drawn})")
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "register_ahead", None, (2,), "next_id_block")]
    assert finding.severity is Severity.error
    assert finding.actual.startswith(f"{4 - drawn // 1024} blocks ahead")
    fleet.execute("a", finding.hint[finding.hint.index("SELECT") :])
    assert fleet.verify() == ()
    draw(fleet, "a", 2, 1)
    assert fleet.query("a", "SELECT last_value FROM shard2.next_id_seq") == [(5 * 1024,)]
    assert fleet.verify() == ()
    # The same again does not set a counter back that has gone on.
    fleet.execute("a", finding.hint[finding.hint.index("SELECT") :])
    assert fleet.query("a", "SELECT last_value FROM shard2.next_id_seq") == [(5 * 1024 + 1,)]


def test_one_block_behind_is_normal_and_more_is_a_warning(fleet: RolledBack) -> None:
    draw(fleet, "b", 6, 10)
    fleet.execute("b", "SELECT setval('shard6.next_id_seq', 1024)")
    assert fleet.verify() == ()
    fleet.execute("b", "SELECT setval('shard6.next_id_seq', 3 * 1024)")
    [finding] = fleet.verify()
    assert told([finding]) == [("generator", "register_behind", None, (6,), "next_id_block")]
    assert finding.severity is Severity.warning
    assert finding.actual == "3 blocks behind next_id_seq"
    fleet.execute("b", finding.hint[finding.hint.index("SELECT") :])
    assert fleet.verify() == ()


def test_the_next_id_mends_a_register_that_is_far_behind(fleet: RolledBack) -> None:
    fleet.execute("b", "SELECT setval('shard6.next_id_seq', 9 * 1024)")
    assert [f.code for f in fleet.verify()] == ["register_behind"]
    draw(fleet, "b", 6, 1)
    assert fleet.verify() == ()
