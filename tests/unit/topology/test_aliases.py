"""The names that poolers offer: which are refused when the file is loaded, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardctl.pgbouncer import render
from shardctl.topology import aliases
from shardctl.topology.loader import TopologyInvalid, parse
from shardctl.topology.model import PoolerName, Topology

FILE = Path("topology.yaml")
BASE = """\
cluster: photos
shards: {count: 8, schema: 'shard{id}'}
database: {name: app}
nodes:
  a: {host: h, port: 1, shards: 0-3}
  b: {host: i, port: 1, shards: 4-7}
poolers:
  p: {host: j, port: 1, config: p.ini, aliases: [node]}
  q: {host: k, port: 1, config: q.ini, aliases: [shard]}
"""
ONLY = "is not a valid alias: PgBouncer needs letters, digits, _ . - only"
LONG = "is too long: PgBouncer pauses aliases of at most 61 bytes"
NODE, SHARD = "topology.yaml:8:49: poolers.p.aliases:", "topology.yaml:9:49: poolers.q.aliases:"


def loaded(*changes: tuple[str, str]) -> Topology:
    text = BASE
    for old, new in changes:
        assert text.count(old) == 1, "the snippet changes one place"
        text = text.replace(old, new)
    return parse(text.encode(), FILE)


def refused(*changes: tuple[str, str]) -> list[str]:
    with pytest.raises(TopologyInvalid) as error:
        loaded(*changes)
    return str(error.value).splitlines()


def offered(topology: Topology, pooler: str) -> list[str]:
    one = topology.poolers[PoolerName(pooler)]
    return [entry.alias for entry in render.entries(topology, one)]


# (what is changed in BASE, into what, the lines that are said)
CHANGES = [
    ("'shard{id}'", "'shard {id}'", [f"{SHARD} 'shard 7' {ONLY}"]),
    ("'shard{id}'", "'größe{id}'", [f"{SHARD} 'größe7' {ONLY}"]),
    ("'shard{id}'", "'a\"b{id}'", [f"{SHARD} 'a\"b7' {ONLY}"]),
    ("'shard{id}'", "'a=b;{id}#'", [f"{SHARD} 'a=b;7#' {ONLY}"]),
    ("'shard{id}'", "'[{id}]'", [f"{SHARD} '[7]' {ONLY}"]),
    ("'shard{id}'", "'*{id}'", [f"{SHARD} '*7' {ONLY}"]),
    ("'shard{id}'", "'sh%{id}'", [f"{SHARD} 'sh%7' {ONLY}"]),
    ("'shard{id}'", f"'{'s' * 61}{{id}}'", [f"{SHARD} '{'s' * 40}...' {LONG}"]),
    ("'shard{id}'", f"'{'s' * 51}{{id:011d}}'", [f"{SHARD} '{'s' * 40}...' {LONG}"]),
    ("name: app", "name: my app", [f"{NODE} 'my app_a' {ONLY}"]),
    ("name: app", "name: '*'", [f"{NODE} '*_a' {ONLY}"]),
    ("name: app", f"name: {'d' * 60}", [f"{NODE} '{'d' * 40}...' {LONG}"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "lines"), CHANGES, ids=[new for _, new, _ in CHANGES])
def test_what_pgbouncer_cannot_offer_is_refused_at_the_pooler_that_would(
    old: str, new: str, lines: list[str]
) -> None:
    assert refused((old, new)) == lines


@pytest.mark.parametrize(
    ("old", "new", "pooler"),
    [
        ("'shard{id}'", "'S.h_a-r{id:03d}d'", "q"),
        ("'shard{id}'", f"'{'s' * 60}{{id}}'", "q"),
        ("'shard{id}'", "'{id}'", "q"),
        ("name: app", "name: A.p-p_1", "p"),
        ("name: app", f"name: {'d' * 59}", "p"),
    ],
)
def test_what_pgbouncer_can_offer_is_taken(old: str, new: str, pooler: str) -> None:
    found = offered(loaded((old, new)), pooler)
    assert found
    assert [aliases.flaw(alias) for alias in found] == [None] * len(found)
    assert max(map(len, found)) <= aliases.MAX_ALIAS


CLASH = (("'shard{id}'", "'app_{id}'"), ("  a:", "  3:"))


def test_one_name_for_a_node_and_a_shard_is_refused_where_both_are_offered() -> None:
    assert refused(*CLASH, ("[node]", "[shard, node]")) == [
        "topology.yaml:8:49: poolers.p.aliases: app_3 would be the alias of both node 3 and shard 3"
    ]


@pytest.mark.parametrize("node", ["8", "03", "3x", "x3"])
def test_a_node_that_is_named_like_no_shard_is_fine(node: str) -> None:
    topology = loaded(CLASH[0], ("  a:", f"  {node}:"), ("[node]", "[node, shard]"))
    found = offered(topology, "p")
    assert len(found) == len(set(found)) == 10
