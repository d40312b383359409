"""`shardctl decode-id` and `encode-id`: ids to time, shard and sequence, and back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import App
from shardctl.cli.context import topology_if_there
from shardctl.cli.options import Listing, ListingOption, Report, ReportOption
from shardctl.cli.printed import PRINTED
from shardctl.errors import Misused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


decode_id_app = App()

_BLOCK_BYTES = 1 << 18
"""Bytes of standard input per read: memory stays constant for millions of ids."""

_LONGEST = 8192
"""The longest line that is parsed: an id has at most 20 characters."""
_SHOWN = 80


# An id may be negative: an argument may look like an option.
@decode_id_app.command(context_settings={"ignore_unknown_options": True})
def decode_id(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Decimal or 0x; from standard input if none is given."),
    ] = None,
    *,
    output: ListingOption = Listing.table,
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
    places: dict[int, Place] | None = (
        {
            int(shard): Place(topology.schema(shard), node)
            for shard, node in topology.owners().items()
        }
        if topology
        else None
    )
    decoder = Decoder(layout, output.value, places)
    write = sys.stdout.write
    PRINTED.json = True  # one object a line from here on: bad ids have none
    write(decoder.header)
    if ids:
        write(decoder.decode(enumerate(ids, 1), _complain_of("argument")))
    else:
        for first, lines in _blocks():
            write(decoder.decode(enumerate(lines, first), _complain_of("line")))
    if topology and decoder.unplaced:
        from shardctl.cli import picture
        from shardctl.cli.output import say
        from shardctl.topology import ranges

        unplaced = picture.shorten(ranges.of(sorted(decoder.unplaced)))
        say(f"note: shards that are not in {topology.path.name}: {unplaced}")
    if decoder.bad:
        raise Misused(
            "bad_ids", f"{decoder.bad} of {decoder.bad + decoder.good} could not be decoded"
        )


def _complain_of(what: str) -> Callable[[int, str], None]:
    def complain(number: int, reason: str) -> None:
        print(f"shardctl: {what} {number}: {reason}", file=sys.stderr)

    return complain


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


@encode_id_app.command()
def encode_id(
    ctx: typer.Context,
    *,
    time: Annotated[
        str,
        typer.Option("--time", metavar="T", help="ISO 8601; UTC without a time zone."),
    ],
    shard: Annotated[int, typer.Option("--shard", metavar="N", help="The shard's number.")] = 0,
    output: ReportOption = Report.table,
) -> None:
    """Print the smallest id that a shard can have made at or after a time.

    Use it for range scans by time: `WHERE id >= ...`. Without --shard it prints the smallest id of
    any shard. Without a topology it uses the default layout.
    """
    from shardctl.cli.output import print_json
    from shardctl.ids import times
    from shardctl.ids.layout import Layout
    from shardctl.topology.routes import ShardNotFound

    try:
        time_ms = times.parse(time)
    except ValueError:
        raise UsageError(
            f"--time: invalid time {time!r}", hint="write it as 2011-09-09T22:28:04.721Z"
        ) from None
    topology = topology_if_there(ctx)
    if topology is not None and not 0 <= shard < topology.shard_count:
        raise ShardNotFound(shard, topology.shard_count)
    layout = Layout.of(topology.id) if topology else Layout()
    number = layout.floor(time_ms, shard)
    if output is Report.json:
        decoded = layout.decode(number)
        print_json({"id": str(number), "time": times.render(decoded.time_ms), "shard": shard})
    else:
        print(number)
