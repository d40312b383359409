"""One question to every node, some of which are away."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from shardctl.errors import Problems, Refused
from shardctl.postgres.connection import NodeUnavailable
from shardctl.state import observer
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, Topology
    from tests.fixtures.fleets.fleet import Fleet


def with_closed_ports(topology: Topology, *names: str) -> Topology:
    nodes = {
        name: dataclasses.replace(node, port=1) if name in names else node
        for name, node in topology.nodes.items()
    }
    return dataclasses.replace(topology, nodes=nodes)


def with_a_spare(topology: Topology) -> Topology:
    a = next(iter(topology.nodes.values()))
    spare = dataclasses.replace(a, name=NodeName("z"), shards=())
    return dataclasses.replace(topology, nodes={**topology.nodes, spare.name: spare})


def test_every_node_gives_a_value_or_an_error(fleet_8: Fleet) -> None:
    topology = with_closed_ports(with_a_spare(fleet_8.topology()), "b", "z")

    def name(session: Connection, node: Node) -> str:
        assert session.autocommit
        return str(node.name)

    asked = observer.ask(topology, name, purpose="test")
    assert asked.values == {"a": "a"}
    assert list(asked.errors) == ["b", "z"]
    assert asked.away == {"z"}
    with pytest.raises(NodeUnavailable, match="node b"):
        asked.every()
    nodes = [topology.nodes[NodeName(name)] for name in ("a", "z")]
    assert observer.ask(topology, name, purpose="test", nodes=nodes).every() == {"a": "a"}


def test_what_the_database_refuses_and_what_a_question_raises_are_problems(fleet_8: Fleet) -> None:
    topology = with_a_spare(fleet_8.topology())

    def fail(session: Connection, node: Node) -> None:
        if node.name == "b":
            raise Refused("odd", "node b is odd")
        session.execute("SELECT 1 / 0")

    asked = observer.ask(topology, fail, purpose="test")
    # A spare node that answers, and not what was asked, is no node that waits to be cloned onto.
    assert not asked.away
    with pytest.raises(Problems) as caught:
        asked.every()
    assert ["division by zero" in str(error) for error in caught.value.errors] == [
        True,
        False,
        True,
    ]
    assert [type(error) for error in caught.value.errors] == [
        NodeUnavailable,
        Refused,
        NodeUnavailable,
    ]


def test_a_bug_is_raised(fleet_8: Fleet) -> None:
    def fail(_: Connection, node: Node) -> None:
        raise KeyError(node.name)

    with pytest.raises(KeyError):
        observer.ask(fleet_8.topology(), fail, purpose="test")
