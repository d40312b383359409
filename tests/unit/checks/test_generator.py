"""What the check `generator` makes of functions, sequences and grants, without a server."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.generator import Lack
from shardctl.checks.registers import Held
from shardctl.ids import generator
from tests.fixtures.fleets.facts import A, B, healthy
from tests.fixtures.fleets.verify import told

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.fleets.facts import Facts

NodeMap = tuple[str, str, str | None, tuple[int, ...], str | None]

ALONE: dict[str, tuple[Callable[[Facts], None], NodeMap, str]] = {
    "next_id() of another shard": (
        lambda seen: seen.schema(A, "shard2", wrapper=generator.wrapper_body("shard5", 5)),
        ("generator", "other_shard", None, (2,), "next_id()"),
        "makes ids of shard 5",
    ),
    "next_id() with another number and its own sequences": (
        lambda seen: seen.schema(B, "shard6", wrapper=generator.wrapper_body("shard6", 4)),
        ("generator", "other_shard", None, (6,), "next_id()"),
        "makes ids of shard 4",
    ),
    "another next_id()": (
        lambda seen: seen.schema(A, "shard1", wrapper="SELECT 1::bigint"),
        ("generator", "next_id_differs", None, (1,), "next_id()"),
        "the body differs from shardctl's",
    ),
    "no next_id()": (
        lambda seen: seen.schema(A, "shard1", wrapper=None),
        ("generator", "next_id_missing", None, (1,), "next_id()"),
        "absent",
    ),
    "no counter": (
        lambda seen: seen.schema(A, "shard1", counter=False),
        ("generator", "sequence_missing", None, (1,), "next_id_seq"),
        "absent",
    ),
    "no register": (
        lambda seen: seen.schema(A, "shard1", register=False),
        ("generator", "sequence_missing", None, (1,), "next_id_block"),
        "absent",
    ),
    "a counter that caches": (
        lambda seen: seen.see(B, "generator", odd={("shard5", "next_id_seq"): "CACHE 20"}),
        ("generator", "sequence_differs", None, (5,), "next_id_seq"),
        "CACHE 20",
    ),
    "a grant that was revoked": (
        lambda seen: seen.see(
            A, "generator", lacks=[Lack("shard3", "app", "next_id_seq", "USAGE")]
        ),
        ("generator", "not_granted", None, (3,), "next_id_seq"),
        "app lacks USAGE on next_id_seq",
    ),
    "a grant on shardctl's own schema": (
        lambda seen: seen.see(B, "generator", lacks=[Lack(None, "app", "shardctl.map", "SELECT")]),
        ("generator", "state_not_granted", "b", (), "app"),
        "lacks SELECT on shardctl.map",
    ),
    "no role": (
        lambda seen: seen.see(A, "generator", roles=frozenset()),
        ("generator", "role_missing", "a", (), "app"),
        "absent",
    ),
    "a register far behind": (
        lambda seen: seen.see(B, "generator", held={"shard6": Held(None, 3 * 1024)}),
        ("generator", "register_behind", None, (6,), "next_id_block"),
        "4 blocks behind next_id_seq",
    ),
}


@pytest.mark.parametrize("fault", ALONE)
def test_the_fault_is_one_finding_and_nothing_else_is_told(fault: str) -> None:
    breaks, expected, actual = ALONE[fault]
    seen = healthy()
    breaks(seen)
    [finding] = seen.findings()
    assert told([finding]) == [expected]
    assert finding.actual == actual
    assert finding.hint


def test_the_same_fault_in_shards_of_both_nodes_is_one_finding() -> None:
    seen = healthy()
    seen.schema(A, "shard1", wrapper="SELECT 1::bigint")
    seen.schema(B, "shard7", wrapper="SELECT 1::bigint")
    assert told(seen.findings()) == [("generator", "next_id_differs", None, (1, 7), "next_id()")]


def test_all_that_a_role_lacks_is_one_finding() -> None:
    seen = healthy()
    lacks = [
        Lack(schema, "app", what, privilege)
        for schema in ("shard4", "shard7")
        for what, privilege in (
            ("schema", "USAGE"), ("next_id_seq", "SELECT"), ("next_id_seq", "USAGE"),
        )
    ]  # fmt: skip
    seen.see(B, "generator", lacks=lacks)
    [finding] = seen.findings()
    assert told([finding]) == [("generator", "not_granted", None, (4, 7), None)]
    assert finding.actual == "app lacks USAGE on schema; SELECT, USAGE on next_id_seq"


def test_shared_functions_are_the_nodes() -> None:
    seen = healthy()
    functions = dict(seen.seen(B, "generator").functions)
    missing, other = "id_shard(bigint)", "shard_of(text)"
    del functions[missing]
    functions[other] = "SELECT 1"
    seen.see(B, "generator", functions=functions)
    assert told(seen.findings()) == [
        ("generator", "function_missing", "b", (), "shardctl.id_shard"),
        ("generator", "function_differs", "b", (), "shardctl.shard_of"),
    ]


def test_a_generator_that_only_the_topology_has_is_one_finding_a_node() -> None:
    seen = healthy()
    there = seen.topology
    seen.topology = dataclasses.replace(
        there, id=dataclasses.replace(there.id, generator="classic")
    )
    assert [f[:3] for f in told(seen.findings())] == [
        ("identity", "generator_differs", "a"),
        ("identity", "generator_differs", "b"),
    ]
