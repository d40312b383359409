"""Servers that are not the node which the topology takes them for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.state.format import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.basics import Basics
    from shardctl.checks.check import View
    from shardctl.topology.model import NodeName, Topology

NAME = "identity"


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
                yield Finding(
                    NAME,
                    "not_initialised",
                    Severity.error,
                    actual="schema shardctl is missing",
                    expected=f"node {name} of cluster {topology.cluster}",
                    hint="run `shardctl init`",
                    node=name,
                )
            continue
        first = twins.get(name)
        if first is not None:
            yield Finding(
                NAME,
                "same_server",
                Severity.error,
                actual=f"the same server as node {first}",
                expected="a separate server",
                hint="correct the host and port of one of the two nodes in the topology",
                node=name,
            )
        elif (state.cluster, state.node) != (topology.cluster, name):
            yield Finding(
                NAME,
                "other_node",
                Severity.error,
                actual=f"node {state.node} of cluster {state.cluster}",
                expected=f"node {name} of cluster {topology.cluster}",
                hint="correct the node's host and port in the topology; shardctl does not "
                "write to this server",
                node=name,
            )
        elif state.format > FORMAT:
            yield Finding(
                NAME,
                "format_newer",
                Severity.error,
                actual=f"format {state.format}",
                expected=f"at most {FORMAT}, the newest that this shardctl supports",
                hint="use a newer shardctl",
                node=name,
                object="shardctl.cluster",
            )
        else:
            for difference in state.differences(topology):
                yield Finding(
                    NAME,
                    "differs",
                    Severity.error,
                    actual=difference.actual,
                    expected=difference.expected,
                    hint="restore it in the topology: it is fixed for the life of the cluster "
                    "(`init` can change `shards.key` before the first row)",
                    node=name,
                    object=difference.what,
                )
            if state.generator != topology.id.generator:
                yield Finding(
                    NAME,
                    "generator_differs",
                    Severity.error,
                    actual=f"generator {state.generator}",
                    expected=f"generator {topology.id.generator}",
                    hint="run `shardctl init` to change it, or correct the topology",
                    node=name,
                    object="shardctl.next_id",
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
        yield Finding(
            NAME,
            "other_node",
            Severity.error,
            actual=f"nodes {', '.join(wrong)} are of cluster {cluster}",
            expected=f"cluster {view.topology.cluster}",
            hint="use the topology of that cluster, or correct `cluster:`; shardctl does not "
            "write to these servers",
            object="cluster",
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
        right = next((n for n in names if _is_node(basics[n], n)), names[0])
        pairs |= {name: right for name in names if name != right}
    return pairs


def _is_node(basics: Basics, name: NodeName) -> bool:
    return basics.state is not None and basics.state.node == name


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


CHECK = Check(NAME, "every server is the node and the cluster that the topology names", judge)
