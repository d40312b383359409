"""Owners in the file and in maps: differences in ranges, disagreements, and the edited file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.errors import Problems, Refused
from shardctl.maintenance import file_owners
from shardctl.maintenance.places import Fleet, View
from shardctl.postgres.connection import NodeUnavailable
from shardctl.topology import loader
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.errors import ShardctlError
    from shardctl.topology.model import Topology

EXAMPLE = Path(__file__).parents[3] / "topology.yaml"
NODES = ("a", "b", "c", "d")


def owners(text: str) -> dict[ShardId, NodeName]:
    """Give owners by a string with the node of each shard, such as `aabb`."""
    return {ShardId(shard): NodeName(node) for shard, node in enumerate(text)}


def fleet(
    topology: Topology, unasked: Mapping[str, ShardctlError] | None = None, **maps: str
) -> Fleet:
    """Describe a fleet by the map of each node; later nodes have newer maps."""
    views = {
        NodeName(name): View(True, False, number, owners(text), ())  # fields
        for number, (name, text) in enumerate(maps.items(), start=1)
    }
    return Fleet(topology, views, {NodeName(n): e for n, e in (unasked or {}).items()})


@pytest.fixture(scope="module")
def topology() -> Topology:
    return loader.load(EXAMPLE)


@pytest.fixture
def copied(tmp_path: Path) -> Topology:
    path = tmp_path / "topology.yaml"
    path.write_bytes(EXAMPLE.read_bytes())
    return loader.load(path)


def test_a_file_with_the_maps_owners_is_the_same(topology: Topology) -> None:
    compared = file_owners.compare(fleet(topology, a="aaaabbbb", b="aaaabbbb"))
    assert (compared.same, compared.version, compared.after()) == (True, 2, {})


def test_differences_are_ranges_with_both_owners(topology: Topology) -> None:
    compared = file_owners.compare(fleet(topology, a="aaccbbbc"))
    assert [(one.listed, one.first, one.second) for one in compared.differences] == [
        ("2-3", "a", "c"),
        ("7", "b", "c"),
    ]
    assert not compared.same
    assert compared.after() == {"a": (0, 1), "b": (4, 5, 6), "c": (2, 3, 7)}


def test_maps_that_disagree_name_both_nodes_and_give_no_owners(topology: Topology) -> None:
    there = fleet(topology, a="aaaabbbb", b="aaccbbbb")
    compared = file_owners.compare(there)
    assert (compared.owners, compared.differences, compared.same) == ({}, (), False)
    with pytest.raises(Refused) as refused:
        file_owners.require_settled(there, compared)
    assert str(refused.value) == (
        "the maps of node b (version 2) and node a (version 1) disagree about the owners of "
        "shards 2-3: c on b, a on a"
    )


def test_a_map_without_some_rows_disagrees(topology: Topology) -> None:
    there = fleet(topology, a="aaaabb", b="aaaabbbb")
    [one] = file_owners.compare(there).disagreements
    assert "6-7: b on b, no node on a" in str(one.error)
    alone = fleet(topology, a="aaaabb")
    with pytest.raises(Refused, match="the map has no rows of shards 6-7"):
        file_owners.require_settled(alone, file_owners.compare(alone))


def test_no_map_at_all_is_refused(topology: Topology) -> None:
    with pytest.raises(Refused, match="no node has the map"):
        file_owners.compare(Fleet(topology, {}, {}))


def test_a_node_that_the_file_lacks_is_refused(topology: Topology) -> None:
    there = fleet(topology, a="aaaabbxx")
    with pytest.raises(Refused, match="to node x, which is not in"):
        file_owners.require_settled(there, file_owners.compare(there))


def test_a_node_that_cannot_be_read_is_refused_if_it_has_shards(topology: Topology) -> None:
    away = {name: NodeUnavailable(name, "::1", "refused") for name in ("b", "c", "d")}
    there = fleet(topology, away, a="aaaabbbc")
    with pytest.raises(Problems) as problems:
        file_owners.require_settled(there, file_owners.compare(there))
    assert [getattr(one, "node", "") for one in problems.value.errors] == ["b", "c"]


@given(st.lists(st.sampled_from(NODES), min_size=8, max_size=8), st.integers(1, 3))
def test_the_edited_file_has_the_maps_owners_and_all_its_other_text(
    nodes: list[str], seed: int
) -> None:
    del seed
    compared = file_owners.compare(fleet(loader.load(EXAMPLE), a="".join(nodes)))
    planned = file_owners.plan(compared)
    after = loader.parse(planned.after.encode(), EXAMPLE)
    assert after.owners() == owners("".join(nodes))
    kept = [line for line in planned.before.splitlines() if "shards:" not in line]
    assert [line for line in planned.after.splitlines() if "shards:" not in line] == kept


def test_a_file_that_was_changed_meanwhile_is_left_as_it_is(copied: Topology) -> None:
    compared = file_owners.compare(fleet(copied, a="aaccbbbb"))
    planned = file_owners.plan(compared)
    edited = copied.path.read_text() + "# another operator\n"
    copied.path.write_text(edited)
    with pytest.raises(Refused, match="changed after this command read it"):
        file_owners.write(planned)
    assert copied.path.read_text() == edited


def test_a_file_that_was_changed_between_reading_and_planning_is_refused(copied: Topology) -> None:
    compared = file_owners.compare(fleet(copied, a="aaccbbbb"))
    copied.path.write_text(copied.path.read_text().replace("photos", "likes"))
    with pytest.raises(Refused, match="changed after this command read it"):
        file_owners.plan(compared)


def test_of_two_operators_the_second_is_refused(copied: Topology) -> None:
    one = file_owners.plan(file_owners.compare(fleet(copied, a="aaccbbbb")))
    other = file_owners.plan(file_owners.compare(fleet(copied, a="aaccbbbb")))
    file_owners.write(one)
    with pytest.raises(Refused, match="changed after this command read it"):
        file_owners.write(other)
    assert loader.load(copied.path).owners() == owners("aaccbbbb")


def test_what_cannot_be_written_is_refused_with_the_values(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    text = EXAMPLE.read_text()
    path.write_text(text.replace("shards: none", "shards: &none none", 1))
    compared = file_owners.compare(fleet(loader.load(path), a="aaccbbbb"))
    with pytest.raises(Refused) as refused:
        file_owners.plan(compared)
    assert refused.value.code == "file_not_edited"
    assert "nodes.c.shards: 2-3" in refused.value.hint
