"""Servers that are not the node which the topology takes them for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, Check, Rule, Rules
from shardctl.state.cluster import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.check import Basics, Finding, View
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
        "same_server": Rule(
            ERROR,
            "the same server as node {first}",
            "a separate server",
            "correct the host and port of one of the two nodes in the topology",
        ),
        "other_node": Rule(ERROR, "{actual}", "{member}cluster {cluster}", "{hint}"),
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
            "restore it in the topology: it is fixed for the life of the cluster (`init` can "
            "change `shards.key` before the first row)",
        ),
        "generator_differs": Rule(
            ERROR,
            "generator {there}",
            "generator {right}",
            "run `shardctl init` to change it, or correct the topology",
        ),
    },
)


def judge(view: View[None]) -> Iterator[Finding]:
    """Find rows of other nodes and clusters, one server under two names, other layouts."""
    topology = view.topology
    twins = same_server(view.basics)
    wrong = _of_another_cluster(view)
    yield from _wrong_cluster(view, wrong)
    for name, basics in view.basics.items():
        state = basics.state
        if name in wrong or view.clone(name):
            continue
        if state is None:
            if topology.nodes[name].shards:
                yield RULES.finding("not_initialised", node=name, cluster=topology.cluster)
            continue
        first = twins.get(name)
        if first is not None:
            yield RULES.finding("same_server", node=name, first=first)
        elif (state.cluster, state.node) != (topology.cluster, name):
            yield RULES.finding(
                "other_node",
                node=name,
                actual=f"node {state.node} of cluster {state.cluster}",
                member=f"node {name} of ",
                cluster=topology.cluster,
                hint="correct the node's host and port in the topology; shardctl does not write "
                "to this server",
            )
        elif state.format > FORMAT:
            yield RULES.finding(
                "format_newer", node=name, object="shardctl.cluster", format=state.format
            )
        else:
            for difference in state.differences(topology):
                yield RULES.finding(
                    "differs",
                    node=name,
                    object=difference.what,
                    actual=difference.actual,
                    expected=difference.expected,
                )
            if state.generator != topology.id.generator:
                yield RULES.finding(
                    "generator_differs",
                    node=name,
                    object="shardctl.next_id",
                    there=state.generator,
                    right=topology.id.generator,
                )


def _of_another_cluster(view: View[None]) -> dict[NodeName, str]:
    """Give the nodes, and their cluster, where all are right but for the same other cluster."""
    found = {
        name: one.state.cluster
        for name, one in view.basics.items()
        if one.state is not None and one.state.node == name
    }
    alike = len(found) > 1 and len({*found.values(), view.topology.cluster}) == 2
    return found if alike and view.topology.cluster not in found.values() else {}


def _wrong_cluster(view: View[None], wrong: Mapping[NodeName, str]) -> Iterator[Finding]:
    """Report a wrong `cluster:` once, whatever the number of nodes."""
    for cluster in set(wrong.values()):
        yield RULES.finding(
            "other_node",
            object="cluster",
            actual=f"nodes {', '.join(wrong)} are of cluster {cluster}",
            member="",
            cluster=view.topology.cluster,
            hint="use the topology of that cluster, or correct `cluster:`; shardctl does not write "
            "to these servers",
        )


def same_server(basics: Mapping[NodeName, Basics]) -> dict[NodeName, NodeName]:
    """Pair each node that is another one's server with the one that it rightly is.

    A clone shares its source's system identifier, so what counts is the random identity of
    the row and the moment of the postmaster's start.
    """
    servers: dict[tuple[str, object], list[NodeName]] = {}
    for name, one in basics.items():
        if one.state is not None:
            servers.setdefault((one.state.identity, one.started), []).append(name)
    pairs: dict[NodeName, NodeName] = {}
    for names in servers.values():
        rows = {name: basics[name].state for name in names}
        right = next((n for n, row in rows.items() if row and row.node == n), names[0])
        pairs |= {name: right for name in names if name != right}
    return pairs


def strangers(topology: Topology, basics: Mapping[NodeName, Basics]) -> set[NodeName]:
    """Name the nodes whose server is another one: nothing else about them makes sense."""
    twins = same_server(basics)
    return {
        name
        for name, one in basics.items()
        if name in twins
        or (one.state is None and topology.nodes[name].shards)
        or (one.state and (one.state.cluster, one.state.node) != (topology.cluster, name))
        or (one.state and one.state.format > FORMAT)
    }


CHECK = Check(RULES, "every server is the node and the cluster that the topology names", judge)
