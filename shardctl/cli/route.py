"""`shardctl route`: from a key to its shard, node, aliases and connection strings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption, command_app
from shardctl.cli.output import print_json, print_table, print_tsv
from shardctl.errors import Problems, ShardctlError, UsageError

if TYPE_CHECKING:
    from shardctl.topology.model import Topology
    from shardctl.topology.routes import Route

app = command_app()

HEADER = ("key", "shard", "schema", "node", "alias", "dsn")


# A key may be negative: what looks like an option is an argument.
@app.command(context_settings={"ignore_unknown_options": True})
def route(
    ctx: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Integer keys.")],
    *,
    ids: Annotated[bool, typer.Option("--id", help="The arguments are existing ids.")] = False,
    output: ListingOption = Listing.table,
) -> None:
    """Show where keys live: shard, schema, node, pooler aliases, connection strings.

    A key's shard is the key modulo the number of shards, never negative. Contacts no server:
    it tells what the topology says. Good keys are answered, bad ones named, exit code 2.
    """
    topology = load_topology(ctx)
    found: list[tuple[str, Route]] = []
    problems: list[ShardctlError] = []
    for text in keys:
        try:
            found.append((text, _route(topology, text, by_id=ids)))
        except UsageError as problem:
            problems.append(problem)
    _print(topology, found, output)
    if problems:
        raise Problems(problems)


def _route(topology: Topology, text: str, *, by_id: bool) -> Route:
    from shardctl.ids.layout import IdOutOfRange, Layout
    from shardctl.topology import routes

    if not re.fullmatch(r"[+-]?[0-9]{1,40}|0[xX][0-9a-fA-F]{1,16}", text):
        raise UsageError(f"{text[:40]!r} is no integer")
    number = int(text, 16 if text[:2] in {"0x", "0X"} else 10)
    if not by_id:
        return routes.of_key(topology, number)
    try:
        return routes.of_shard(topology, Layout.of(topology.id).decode(number).shard)
    except IdOutOfRange as error:
        raise UsageError(str(error)) from error


def _print(topology: Topology, found: list[tuple[str, Route]], output: Listing) -> None:
    from shardctl.libpq import dsn

    database = topology.database.name
    rows = []
    for key, route in found:
        node_dsn = dsn(route.node.host, route.node.port, database)
        poolers = {p.name: dsn(p.host, p.port, alias) for p, alias in route.poolers}
        if output is Listing.json:
            print_json(
                {
                    "key": key,
                    "shard": route.shard,
                    "schema": route.schema,
                    "node": route.node.name,
                    "aliases": dict(route.aliases),
                    "dsn": {"node": node_dsn, "poolers": poolers},
                }
            )
        aliases = ",".join(route.aliases.values())
        rows.append((key, str(route.shard), route.schema, route.node.name, aliases, node_dsn))
    if output is Listing.tsv:
        print_tsv(rows)
    elif output is Listing.table and rows:
        print_table(HEADER, rows)
