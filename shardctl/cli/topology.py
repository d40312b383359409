"""`shardctl topology`: check the file, compare it with the maps, print its JSON Schema."""

from __future__ import annotations

import typer

from shardctl.cli import picture, topology_owners
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import plural, print_json

app = command_app(
    no_args_is_help=True,
    help="Check the topology file, compare it with the databases, print its JSON Schema.",
)
app.command()(topology_owners.diff)
app.command()(topology_owners.pull)


@app.command()
def check(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Read the topology and report every problem, each with its line and column.

    Contacts no server. Exit code 2 if there is a problem.
    """
    from shardctl.cli.output import print_table
    from shardctl.topology import ranges

    topology = load_topology(ctx)
    if output is Report.json:
        nodes = [
            {"name": n.name, "host": n.host, "port": n.port, "shards": list(n.shards)}
            for n in topology.nodes.values()
        ]
        print_json({"format": 1, "cluster": topology.cluster, "ok": True, "nodes": nodes})
        return
    print_table(
        ("node", "address", "shards", ""),
        (
            (
                n.name,
                f"{n.host}:{n.port}",
                f"{len(n.shards):,}",
                picture.shorten(ranges.of(n.shards)),
            )
            for n in topology.nodes.values()
        ),
    )
    print(
        f"{topology.path} is valid: cluster {topology.cluster}, "
        f"{plural(topology.shard_count, 'shard')}, {plural(len(topology.nodes), 'node')}, "
        f"{plural(len(topology.poolers), 'pooler')}"
    )


@app.command()
def schema() -> None:
    """Print the file's JSON Schema, for editors that complete and check YAML."""
    import json

    from shardctl.topology import loader

    print(json.dumps(loader.json_schema(), indent=2))
