"""`shardctl decode-id`, `encode-id` and `route`: from ids and keys to times, shards and nodes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture
from shardctl.cli.command import App, Context, load_topology, topology_if_there
from shardctl.cli.options import ListingOption, ReportOption
from shardctl.cli.output import Printed, emit, print_json, say
from shardctl.errors import Misused, Problems, ShardctlError, UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.state.map import NodeMap
    from shardctl.topology.model import Topology
    from shardctl.topology.routes import Route


decode_id_app = App()

_BLOCK_BYTES = 1 << 18
"""Bytes of standard input per read: memory stays constant for millions of ids."""
_LONGEST = 8192
"""The longest line that is parsed: an id has at most 20 characters."""
_SHOWN = 80


# An id may be negative: an argument may look like an option.
@decode_id_app.command(context_settings={"ignore_unknown_options": True})
def decode_id(
    ctx: Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Decimal or 0x; from standard input if none is given."),
    ] = None,
    *,
    output: ListingOption = "table",
) -> None:
    """Decode ids: time, shard and sequence; with a topology also schema and node.

    The node is the one in the topology file: decode-id contacts no server, `shardctl route --id`
    asks the databases. A shard that the file does not have gets no schema and no node. Without a
    topology (no --topology, no ./topology.yaml) it uses the default layout. It lists bad ids on
    standard error, decodes the rest, and exits with code 2.
    """
    from shardctl.ids.decoding import Decoder, Place
    from shardctl.ids.layout import Layout

    if not ids and sys.stdin.isatty():
        raise UsageError("no ids given", hint="give ids as arguments or on standard input")
    topology = topology_if_there(ctx)
    layout = Layout.of(topology.id) if topology else Layout()
    places: dict[int, Place] | None = None
    if topology:
        owners = topology.owners().items()
        places = {int(shard): Place(topology.schema(shard), node) for shard, node in owners}
    decoder = Decoder(layout, output, places)
    write = sys.stdout.write
    Printed.json = True  # one object a line from here on: bad ids have none
    write(decoder.header)
    if ids:
        write(decoder.decode(enumerate(ids, 1), _complain))
    else:
        for first, lines in _blocks():
            write(decoder.decode(enumerate(lines, first), _complain))
    if topology and decoder.unplaced:
        unplaced = picture.shorten(ranges.of(sorted(decoder.unplaced)))
        say(f"note: shards that are not in {topology.path.name}: {unplaced}")
    if decoder.bad:
        raise Misused(
            "bad_ids", f"{decoder.bad} of {decoder.bad + decoder.good} could not be decoded"
        )


def _complain(number: int, reason: str) -> None:
    """Report an argument or a line of standard input, by its number."""
    print(f"shardctl: input {number}: {reason}", file=sys.stderr)


def _blocks() -> Iterator[tuple[int, list[str]]]:
    """Read standard input in blocks of lines, each with the number of its first line."""
    first, rest = 1, ""
    # Bytes that are not UTF-8 are not a number either: errors show them escaped.
    stream = open(sys.stdin.fileno(), encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115  # standard input stays open
    while block := stream.read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split("\n")
        if len(rest) > _LONGEST:  # memory stays constant for an endless line, too
            rest = f"{rest[:_SHOWN]}..."
        yield first, lines
        first += len(lines)
    yield first, [rest]


encode_id_app = App()


def _time_ms(value: str) -> int:
    from shardctl.ids import times

    return times.parse(value)


@encode_id_app.command()
def encode_id(
    ctx: Context,
    *,
    time: Annotated[
        int,
        typer.Option(metavar="<t>", parser=_time_ms, help="ISO 8601; UTC without a time zone."),
    ],
    shard: Annotated[int, typer.Option(help="The shard's number.")] = 0,
    output: ReportOption = "table",
) -> None:
    """Print the smallest id that a shard can have made at or after a time.

    Use it for range scans by time: `WHERE id >= ...`. Without --shard it prints the smallest id of
    any shard. Without a topology it uses the default layout.
    """
    from shardctl.ids import times
    from shardctl.ids.layout import Layout
    from shardctl.topology.routes import ShardNotFound

    topology = topology_if_there(ctx)
    if topology is not None and not 0 <= shard < topology.shard_count:
        raise ShardNotFound(shard, topology.shard_count)
    layout = Layout.of(topology.id) if topology else Layout()
    number = layout.encode(time, shard)
    if output == "json":
        decoded = layout.decode(number)
        print_json({"id": str(number), "time": times.render(decoded.time_ms), "shard": shard})
    else:
        print(number)


route_app = App()

_WITHIN_S = 0.5
"""How long to wait for databases, so that the file is used soon if none answers."""

HEADER = ("key", "shard", "schema", "node", "alias", "dsn")


# A key may be negative: an argument may look like an option.
@route_app.command(context_settings={"ignore_unknown_options": True})
def route(
    ctx: Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help="Integers, UUIDs or text.")],
    *,
    ids: Annotated[bool, typer.Option("--id", help="The arguments are existing ids.")] = False,
    text: Annotated[
        bool, typer.Option(help="Keys are text, even if they look like numbers or UUIDs.")
    ] = False,
    offline: Annotated[
        bool, typer.Option(help="Contact no database: use only the topology file.")
    ] = False,
    output: ListingOption = "table",
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
    from shardctl.topology import routes

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
            owners = reported.map.owners if reported else ()
            found.append((given, routes.of_shard(topology, shard, owners)))
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


def _print(
    topology: Topology, found: list[tuple[str, Route]], reported: NodeMap | None, output: str
) -> None:
    from shardctl.libpq import dsn

    Printed.json = True  # one object a line from here on: bad keys have none
    origin = {
        "version": reported.map.version if reported else None,
        "from": "node" if reported else "file",
        "node": reported.node if reported else None,
    }
    rows = []
    for key, route in found:
        node_dsn = dsn(route.node.host, route.node.port, topology.database.name)
        poolers = {p.name: dsn(p.host, p.port, alias) for p, alias in route.poolers}
        where = {"shard": route.shard, "schema": route.schema, "node": route.node.name}
        if output == "json":
            shown = {"aliases": dict(route.aliases), "dsn": {"node": node_dsn, "poolers": poolers}}
            print_json({"key": key, **where, **shown, "map": origin})
        rows.append((key, *map(str, where.values()), ",".join(route.aliases.values()), node_dsn))
    if output != "json":
        emit(output, HEADER, rows, {})
