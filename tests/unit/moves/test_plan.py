"""Plans of moves: what is refused by the topology alone, halves, before and after, what counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.errors import UsageError
from shardctl.moves import plan, service
from shardctl.moves.plan import MovePlan, MoveRefused, Options, PlanUnreadable, TopologyChanged
from shardctl.postgres.logical.publication import Identity
from shardctl.state.journal import MoveState
from shardctl.state.ledger import Entry
from shardctl.topology.loader import parse
from shardctl.topology.model import ShardId, Topology
from shardctl.topology.routes import ShardNotFound

FILE = Path("/srv/topology.yaml")
TEXT = """\
cluster: photos
shards: {count: 8, schema: 'shard{id}'}
database: {name: app, migrations: migrations/}
nodes:
  a: {host: one, port: 5432, shards: 0-3}
  b: {host: two, port: 5432, shards: 4-7}
  c: {host: three, port: 5432, shards: none, data_directory: /data/c}
poolers:
  p1: {host: four, port: 6432, config: /etc/p.ini, aliases: [node]}
"""
OPTIONS = Options(max_pause_s=5, retain_s=86_400)


def topology(*changes: tuple[str, str]) -> Topology:
    """Read the topology with some of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse(text.encode(), FILE)


def made(shards: tuple[int, ...] = (2, 3), **given: Any) -> MovePlan:
    where = given.get("topology", topology())
    return plan.make(where, shards, given.get("target", "c"), 7, OPTIONS)


def of_journal(move: MovePlan) -> MovePlan:
    """Write a plan down as the journal does, and read it back."""
    return read_back(move, move.as_json())


def read_back(move: MovePlan, text: dict[str, Any]) -> MovePlan:
    """Read a plan of a journal that has this text of it."""
    kept = {name: getattr(move, name) for name in ("id", "method", "source", "target", "shards")}
    kept |= {"schemas": move.schemas, "retired": move.retired, "plan": text}
    return MovePlan.of_journal(type("Row", (), kept)())


def test_a_plan_comes_back_from_the_journal_as_it_was() -> None:
    group = {"id": "5f3a9c1e", "moves": [["a", "c", "2-3"]]}
    lent = (Identity("shard2", "bare", "n"),)
    for move in (made(), dataclasses.replace(made(), group=group, lent=lent)):
        assert of_journal(move) == move


@pytest.mark.parametrize(
    ("shards", "target", "kind", "named"),
    [
        ((2,), "x", UsageError, "x"),
        ((), "c", UsageError, "no"),
        ((2, 8), "c", ShardNotFound, "8"),
        ((2, 3), "a", MoveRefused, "2-3"),
        ((2, 4, 5), "b", MoveRefused, "4-5"),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    shards: tuple[int, ...], target: str, kind: type[Exception], named: str
) -> None:
    with pytest.raises(kind, match=named):
        made(shards, target=target)


def test_nothing_is_cloned_onto_a_node_with_shards() -> None:
    with pytest.raises(MoveRefused, match="4-7"):
        service.plan(topology(), [2], "b", OPTIONS, method=plan.CLONE)


@pytest.mark.parametrize(
    ("change", "place", "values"),
    [
        (("host: one", "host: other"), "nodes.a.host", ("one", "other")),
        (("port: 6432", "port: 6433"), "poolers.p1.port", ("6432", "6433")),
        (("cluster: photos", "cluster: films"), "cluster", ("photos", "films")),
    ],
)
def test_a_topology_that_is_another_is_refused_with_both_values(
    change: tuple[str, str], place: str, values: tuple[str, str]
) -> None:
    move = of_journal(made())
    with pytest.raises(TopologyChanged) as caught:
        plan.require_same(topology(change), move)
    assert place in caught.value.message
    assert all(value in caught.value.message for value in values)


def test_a_pooler_that_was_added_meanwhile_is_refused() -> None:
    added = topology(("poolers:\n", "poolers:\n  p2: {host: five, port: 1, config: /etc/q.ini}\n"))
    with pytest.raises(TopologyChanged, match=r"poolers\.p2\."):
        plan.require_same(added, made())


@pytest.mark.parametrize("lacking", ["said", "options"])
def test_a_plan_that_lacks_something_is_refused_by_its_name(lacking: str) -> None:
    kept = made().as_json()
    del kept[lacking]
    with pytest.raises(PlanUnreadable, match=lacking):
        read_back(made(), kept)


def test_a_move_of_a_newer_version_is_refused_by_what_this_one_does_not_have() -> None:
    move = made()
    kept: dict[str, Any] = {"id": move.id, "source": "a", "target": "c", "shards": move.shards}
    kept |= {"schemas": move.schemas, "retired": move.retired, "state": MoveState.reserved}
    kept |= {"method": "of tomorrow", "plan": move.as_json()}
    entry = Entry(SimpleNamespace(**kept), (), None)  # type: ignore[arg-type]  # a row of it
    with pytest.raises(PlanUnreadable, match="tomorrow"):
        service.require_resumable(topology(), entry, service.Given())


def test_no_plan_keeps_a_password() -> None:
    found = topology(("name: app,", "name: app, options: {sslmode: require},"))
    text = repr(made(topology=found).as_json())
    assert "sslmode" in text
    assert "password" not in text


@given(st.dictionaries(st.integers(0, 4000), st.integers(0, 10**12), min_size=2, max_size=60))
def test_halves_differ_by_no_more_than_one_shard_weighs(found: dict[int, int]) -> None:
    sizes = {ShardId(shard): size for shard, size in found.items()}
    chosen = plan.half(sizes)
    assert chosen == sorted(set(chosen))
    assert 0 < len(chosen) < len(sizes)
    go = sum(sizes[shard] for shard in chosen)
    assert abs(sum(sizes.values()) - 2 * go) <= max(sizes.values())
