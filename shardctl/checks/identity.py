"""Servers that are not the node which the topology takes them for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, Check, Rule, Rules
from shardctl.state.cluster import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.check import Basics, Finding, View
    from shardctl.state.cluster import ClusterRow
    from shardctl.topology.model import NodeName, Topology

RULES = Rules(
    "identity",
    {
        "not_initialised": Rule(
            ERROR,
            "schema shardctl is missing",
            "node {node} of cluster {cluster}",
            "run `shardctl init`",
        ),
        "other_node": Rule(
            ERROR,
            "{actual}",
            "{wanted}",
            "correct the node's host and port, or use the topology of that cluster",
        ),
        "format_newer": Rule(
            ERROR,
            "format {format}",
            f"at most {FORMAT}, the newest that this shardctl supports",
            "use a newer shardctl",
        ),
        "differs": Rule(
            ERROR,
            "{actual}",
            "{expected}",
            "restore it in the topology (only the generator can be changed, by `shardctl init`)",
        ),
    },
)


def judge(view: View[None]) -> Iterator[Finding]:
    """Find rows of other nodes and clusters, and other layouts."""
    topology = view.topology
    others: dict[str, list[NodeName]] = {}
    for name, basics in view.basics.items():
        state = basics.state
        if view.clone(name):
            continue
        if state is None:
            if topology.nodes[name].shards:
                yield RULES.finding("not_initialised", node=name, cluster=topology.cluster)
        elif state.cluster != topology.cluster:
            others.setdefault(state.cluster, []).append(name)
        elif state.node != name:
            actual, wanted = f"node {state.node} of the cluster", f"node {name}"
            yield RULES.finding("other_node", node=name, actual=actual, wanted=wanted)
        elif state.format > FORMAT:
            yield RULES.finding(
                "format_newer", node=name, object="shardctl.cluster", format=state.format
            )
        else:
            yield from _differences(topology, name, state)
    for cluster, names in others.items():  # a wrong `cluster:` is one finding
        yield RULES.finding(
            "other_node",
            object="cluster",
            actual=f"nodes {', '.join(names)} are of cluster {cluster}",
            wanted=f"cluster {topology.cluster}",
        )


def _differences(topology: Topology, node: NodeName, state: ClusterRow) -> Iterator[Finding]:
    found = state.differences(topology)
    if state.generator != topology.id.generator:
        found.append(("id generator", state.generator, topology.id.generator))
    for what, actual, expected in found:
        yield RULES.finding("differs", node=node, object=what, actual=actual, expected=expected)


def strangers(topology: Topology, basics: Mapping[NodeName, Basics]) -> set[NodeName]:
    """Name the nodes whose server is another one: nothing else about them makes sense."""
    return {
        name
        for name, one in basics.items()
        if ((row := one.state) is None and topology.nodes[name].shards)
        or (row and ((row.cluster, row.node) != (topology.cluster, name) or row.format > FORMAT))
    }


CHECK = Check(RULES, "every server is the node and the cluster that the topology names", judge)
