"""`shardctl route`: from a key to its shard, node, aliases and connection strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import App
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption
from shardctl.cli.output import emit, print_json, say
from shardctl.cli.printed import PRINTED
from shardctl.errors import Problems, ShardctlError, UsageError

if TYPE_CHECKING:
    from shardctl.state.map import NodeMap
    from shardctl.topology.model import Topology
    from shardctl.topology.routes import Route

app = App()

_WITHIN_S = 0.5
"""How long to wait for databases, so that the file is used soon if none answers."""

HEADER = ("key", "shard", "schema", "node", "alias", "dsn")


# A key may be negative: an argument may look like an option.
@app.command(context_settings={"ignore_unknown_options": True})
def route(
    ctx: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Integers, UUIDs or text.")],
    *,
    ids: Annotated[bool, typer.Option("--id", help="The arguments are existing ids.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Keys are text, even if they look like numbers or UUIDs.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Contact no database: use only the topology file.")
    ] = False,
    output: ListingOption = Listing.table,
) -> None:
    """Show where the rows of keys are: shard, schema, node, pooler aliases, connection strings.

    An integer's shard is the key modulo the number of shards, never negative; with
    `shards: {key: id}` in the topology, the shard that made this id. That of a UUID or any other
    text is the first 15 hexadecimal digits of its SHA-256 modulo the number of shards.
    The map in the databases names the node that owns a shard: route asks all nodes at once, and
    uses the newest map that arrives within half a second. If none arrives, or with --offline, it
    uses the topology file. Standard error shows which map was used, and where the file is stale.
    It lists bad keys on standard error, answers the rest, and exits with code 2.
    """
    if ids and text:
        raise UsageError("--id and --text exclude each other", hint="give one of them")
    topology = load_topology(ctx)
    shards: list[tuple[str, int]] = []
    problems: list[ShardctlError] = []
    for given in keys:
        try:
            shards.append(
                (given, _of_id(topology, given) if ids else _of_key(topology, given, text))
            )
        except UsageError as problem:
            problems.append(problem)
    reported = _ask(topology, offline=offline) if shards else None
    found: list[tuple[str, Route]] = []
    for given, shard in shards:
        try:
            found.append((given, _route(topology, shard, reported)))
        except ShardctlError as problem:
            problems.append(problem)
    if reported is not None:
        _report_stale(topology, reported, sorted({shard for _, shard in shards}))
    _print(topology, found, reported, output)
    if problems:
        raise Problems(problems)


def _ask(topology: Topology, *, offline: bool) -> NodeMap | None:
    """Ask the databases for their map, and report which map is used; None is the file's."""
    file = topology.path.name
    if offline:
        say(f"note: using the map of {file}; no database was contacted")
        return None
    from shardctl.state.newest import reports

    found = reports(topology, command="route", within_s=_WITHIN_S)
    reported = max(found, key=lambda one: one.map.version, default=None)
    if reported is None:
        say(
            f"note: no database answered within {_WITHIN_S:g} s: using the map of {file}, which "
            "may be stale"
        )
    else:
        say(f"note: using map version {reported.map.version} from node {reported.node}")
    return reported


def _report_stale(topology: Topology, reported: NodeMap, shards: list[int]) -> None:
    """Report shards that the file gives to other nodes than the map."""
    from shardctl.topology import ranges
    from shardctl.topology.model import ShardId

    owners = topology.owners()
    if stale := [one for one in shards if owners[ShardId(one)] != reported.map.owners[one]]:
        say(
            f"note: {topology.path.name} is stale: it gives shards {ranges.of(stale)} to other "
            "nodes than the map; `shardctl topology diff` lists all"
        )


def _of_key(topology: Topology, given: str, text: bool) -> int:
    from shardctl.state.map import Map
    from shardctl.topology import keys

    return Map.of(topology).shard_of(given if text else keys.read(given))


def _of_id(topology: Topology, given: str) -> int:
    from shardctl.ids.layout import IdOutOfRange, Layout
    from shardctl.topology import keys, routes

    number = keys.integer(given)
    if number is None:
        raise UsageError(f"invalid id {given[:40]!r}: not an integer")
    try:
        shard = Layout.of(topology.id).decode(number).shard
    except IdOutOfRange as error:
        raise UsageError(str(error)) from error
    if shard >= topology.shard_count:
        raise routes.ShardNotFound(shard, topology.shard_count)
    return shard


def _route(topology: Topology, shard: int, reported: NodeMap | None) -> Route:
    from shardctl.topology import routes

    return routes.of_shard(topology, shard, reported.map.owners if reported else ())


def _print(
    topology: Topology, found: list[tuple[str, Route]], reported: NodeMap | None, output: Listing
) -> None:
    from shardctl.libpq import dsn

    PRINTED.json = True  # one object a line from here on: bad keys have none
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
                    "map": {
                        "version": reported.map.version if reported else None,
                        "from": "node" if reported else "file",
                        "node": reported.node if reported else None,
                    },
                }
            )
        aliases = ",".join(route.aliases.values())
        rows.append((key, str(route.shard), route.schema, route.node.name, aliases, node_dsn))
    if output is not Listing.json:
        emit(output, HEADER, rows, {})
