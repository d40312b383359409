"""`shardctl topology`: check the topology file, compare it with the fleet, print its schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from shardctl.cli.command import App, Context, HereChanging, load_topology, run_change
from shardctl.cli.options import ListingOption, ReportOption
from shardctl.cli.output import emit, plural, print_json, say
from shardctl.errors import Refused
from shardctl.topology import ranges

if TYPE_CHECKING:
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import NodeName, ShardId, Topology

    Differences = dict[tuple[NodeName, NodeName], list[ShardId]]

app = App()

_HEADER = ("shards", "file", "map")
_WITHIN_S = 10.0


@app.command()
def check(ctx: Context, *, output: ReportOption = "table") -> None:
    """Read the topology and report every problem, each with its line and column.

    Contacts no server. Exit code 2 if there is a problem.
    """
    topology = load_topology(ctx)
    nodes = [
        {"name": n.name, "host": n.host, "port": n.port, "shards": list(n.shards)}
        for n in topology.nodes.values()
    ]
    if output == "json":
        print_json({"format": 1, "cluster": topology.cluster, "ok": True, "nodes": nodes})
    else:
        print(
            f"{topology.path} is valid: cluster {topology.cluster}, "
            f"{plural(topology.shard_count, 'shard')}, {plural(len(nodes), 'node')}, "
            f"{plural(len(topology.poolers), 'pooler')}"
        )


@app.command()
def schema() -> None:
    """Print the file's JSON Schema, for editors that complete and check YAML."""
    import json

    from shardctl.topology import loader

    print(json.dumps(loader.json_schema(), indent=2))


@app.command()
def diff(ctx: Context, *, output: ListingOption = "table") -> None:
    """Compare the owners of shards in the file with those in the databases' newest map.

    Changes nothing. Exit code 1 if they differ, as with a file from before a move.
    """
    topology = load_topology(ctx)
    reported, found, doubt = _compared(topology)
    value = _as_json(topology, reported, found)
    emit(output, _HEADER, _rows(found), value, nothing=_same(topology, reported))
    if doubt is not None:
        say(f"note: {doubt.message}")
    if found:
        raise typer.Exit(1)


@app.command(cls=HereChanging)
def pull(
    ctx: Context,
    *,
    output: ListingOption = "table",  # noqa: ARG001  # the settings have it
) -> None:
    """Write the owners of shards from the databases' newest map into the file.

    It replaces lists of shards, and keeps comments and everything else. The file must have every
    node that the map names.
    """
    from shardctl.moves import file
    from shardctl.topology.model import ShardId

    topology = load_topology(ctx)
    reported, found, doubt = _compared(topology)
    if doubt is not None:
        raise doubt
    owners = {ShardId(number): owner for number, owner in enumerate(reported.map.owners)}
    values = file.placement(topology, owners) if found else {}
    run_change(
        ctx,
        pending=values,
        header=_HEADER,
        rows=_rows(found),
        nothing=_same(topology, reported),
        plan=_as_json(topology, reported, found),
        question=f"Write the owners of map version {reported.map.version} into {topology.path}?",
        carry_out=lambda _: file.replace(topology, values),
        done=lambda _: (
            f"done: {topology.path} has the owners of map version {reported.map.version}"
        ),
    )


def _compared(topology: Topology) -> tuple[NodeMap, Differences, Refused | None]:
    """Return the newest map, and shards by their owners in the file and the map where they differ.

    With what is not proved by it: a move that only its two nodes have recorded, which are away.
    Raises map_unanswered.
    """
    from shardctl.state.newest import reports

    found = reports(topology, command="topology diff", within_s=_WITHIN_S)
    if not found:
        raise Refused(
            "map_unanswered",
            f"no node reported a map of cluster {topology.cluster} within {_WITHIN_S:g} s",
            hint="run `shardctl status` to see why; `shardctl init` writes the first map",
        )
    newest = max(found, key=lambda one: one.map.version)
    differing: Differences = {}
    for shard, here in sorted(topology.owners().items()):
        if newest.map.owners[shard] != here:
            differing.setdefault((here, newest.map.owners[shard]), []).append(shard)
    answered = {one.node for one in found}
    unproved = [between for between in differing if answered.isdisjoint(between)]
    if not unproved:
        return newest, differing, None
    shards = ranges.of(sorted(shard for between in unproved for shard in differing[between]))
    nodes = ", ".join(sorted({node for between in unproved for node in between}))
    doubt = Refused(
        "owners_unproved",
        f"map version {newest.map.version} of node {newest.node} may be old: who owns shards "
        f"{shards} is known to {nodes} only, which did not answer",
        hint="start one of these nodes, then run the command again",
    )
    return newest, differing, doubt


def _rows(found: Differences) -> list[tuple[str, str, str]]:
    return [(ranges.of(shards), here, there) for (here, there), shards in found.items()]


def _same(topology: Topology, reported: NodeMap) -> str:
    return f"nothing to do: {topology.path} and map version {reported.map.version} agree"


def _as_json(topology: Topology, reported: NodeMap, found: Differences) -> dict[str, Any]:
    return {
        "file": str(topology.path),
        "map": {"version": reported.map.version, "node": reported.node},
        "differences": [
            {"shards": shards, "file": here, "map": there}
            for (here, there), shards in found.items()
        ],
    }
