"""`shardctl route`: from a key to its shard, node, aliases and connection strings."""

from __future__ import annotations

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
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Integers, UUIDs or text.")],
    *,
    ids: Annotated[bool, typer.Option("--id", help="The arguments are existing ids.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Keys are text, also what looks like a number or UUID.")
    ] = False,
    output: ListingOption = Listing.table,
) -> None:
    """Show where keys live: shard, schema, node, pooler aliases, connection strings.

    An integer's shard is the key modulo the number of shards, never negative; that of a UUID
    or any other text is the first 15 hexadecimal digits of its SHA-256 modulo that number.
    Contacts no server: it tells what the topology says. Good keys are answered, bad ones named,
    exit code 2.
    """
    if ids and text:
        raise UsageError("an id is a number", hint="give --id or --text")
    topology = load_topology(ctx)
    found: list[tuple[str, Route]] = []
    problems: list[ShardctlError] = []
    for given in keys:
        try:
            found.append(
                (given, _of_id(topology, given) if ids else _of_key(topology, given, text))
            )
        except UsageError as problem:
            problems.append(problem)
    _print(topology, found, output)
    if problems:
        raise Problems(problems)


def _of_key(topology: Topology, given: str, text: bool) -> Route:
    from shardctl.topology import keys, routes

    return routes.of_key(topology, given if text else keys.read(given))


def _of_id(topology: Topology, given: str) -> Route:
    from shardctl.ids.layout import IdOutOfRange, Layout
    from shardctl.topology import keys, routes

    number = keys.integer(given)
    if number is None:
        raise UsageError(f"{given[:40]!r} is no integer")
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
