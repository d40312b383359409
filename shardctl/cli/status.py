"""`shardctl status`: the fleet at a glance."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption, command_app
from shardctl.cli.output import always_json, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.table import Table

    from shardctl.checks.status import NodeStatus, Slot, Standby, Status
    from shardctl.checks.status_poolers import PoolerStatus

app = command_app()

_HEADER = ("node", "role", "version", "up", "shards", "size", "rows", "sessions", "tps", "disk")
_POOLERS = ("pooler", "state", "version", "clients", "waiting", "servers", "paused")
_BAR = 40
_RANGES = 3


@app.command()
def status(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    watch: Annotated[
        float | None,
        typer.Option("--watch", min=0.1, metavar="SECONDS", help="Look again and again."),
    ] = None,
    sample: Annotated[
        float,
        typer.Option(
            "--sample", min=0, metavar="SECONDS", help="How long to count transactions; 0: do not."
        ),
    ] = 1.0,
) -> None:
    """Show the fleet: nodes, replication, poolers, and a picture of the shards' sizes.

    Changes nothing. What cannot be reached is shown as such, and the exit code is
    0 all the same. With --watch it goes on until Ctrl-C, which is exit code 0 too.
    """
    from shardctl.checks.status import observe
    from shardctl.cli.progress import bars
    from shardctl.errors import ShardctlError
    from shardctl.fanout import Silent

    with always_json(output):
        topology = load_topology(ctx)
    if watch is None:
        with bars() as progress:
            found = observe(topology, sample_s=sample, progress=progress)
        _print(found, output)
        return

    def look() -> Status:
        nonlocal topology
        try:  # a move writes a new one
            topology = load_topology(ctx)
        except ShardctlError as error:
            say(f"shardctl: {error}; going by what it said before")
        return observe(topology, sample_s=sample, progress=Silent())

    try:
        if output is Report.table and sys.stdout.isatty():
            _watch_in_place(look, watch)
        else:
            _every(watch, lambda: _print(look(), output))
    except KeyboardInterrupt:
        return


def _every(seconds: float, refresh: Callable[[], None]) -> None:
    """Call `refresh` for ever, with `seconds` between the begins, or one after the other."""
    never = threading.Event()
    while True:
        began = time.monotonic()
        refresh()
        never.wait(max(0.0, began + seconds - time.monotonic()))


def _watch_in_place(look: Callable[[], Status], seconds: float) -> None:
    """Draw each refresh over the one before; what does not fit the terminal is cut off."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def refresh() -> None:
            found = look()
            lines = [*_picture(found, console.width), "", *_unreached(found)]
            text = Text("\n".join(lines), no_wrap=True, overflow="crop")
            head = Text(f"{_title(found)}  (every {seconds:g} s; Ctrl-C ends)")
            live.update(Group(head, *_tables(found), text), refresh=True)

        _every(seconds, refresh)


def _print(found: Status, output: Report) -> None:
    """Print the whole result, and on standard error what could not be reached."""
    if output is Report.json:
        print_json(found.as_json())
    else:
        show(found)
    sys.stdout.flush()
    for line in _unreached(found):
        say(f"shardctl: {line}")


def show(found: Status) -> None:
    """Print the title, the table of the nodes and the picture of their shards."""
    from rich.console import Console

    print(_title(found))
    # Where nobody looks at a terminal, lines are never folded.
    Console(width=None if sys.stdout.isatty() else 10_000).print(*_tables(found))
    print("\n".join(_picture(found, shutil.get_terminal_size().columns)))


def _title(found: Status) -> str:
    version = "no map yet" if found.map_version is None else f"map version {found.map_version}"
    return f"cluster {found.cluster}, {version}, {found.time:%Y-%m-%d %H:%M:%S} UTC"


def _unreached(found: Status) -> list[str]:
    """Say in one line what could not be looked at, in one which are other servers."""
    told = [(n.state, f"{n.name} ({n.error})") for n in found.nodes if n.error]
    # A node without shards that is not there waits to be cloned onto: its row says so.
    missed = [text for state, text in told if state in {"down", "unreadable"}]
    others = [text for state, text in told if state == "up"]
    missed += [f"pooler {p.name} ({p.error})" for p in found.poolers if p.error]
    lines = [f"could not be reached: {', '.join(missed)}"] if missed else []
    return lines + ([f"not the node of the topology: {', '.join(others)}"] if others else [])


def _tables(found: Status) -> list[Table]:
    """Make a table of the nodes, and one of the poolers where there are any."""
    tables = [_nodes(found)]
    if found.poolers:
        tables.append(_table(_POOLERS, map(_pooler_row, found.poolers)))
    return tables


def _nodes(found: Status) -> Table:
    """Make a row for each node, and a column for replication where there is any."""
    replication = any(n.slots or n.standbys for n in found.nodes)
    header = (*_HEADER, "replication") if replication else _HEADER
    return _table(header, (_row(node)[: len(header)] for node in found.nodes))


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _pooler_row(one: PoolerStatus) -> tuple[str, ...]:
    if one.error is not None:
        return one.name, "down", *["-"] * (len(_POOLERS) - 2)
    waiting = str(one.waiting)
    if one.waiting:
        waiting += f" (longest {one.longest_wait_s:.1f} s)"
    shown = ", ".join(one.paused[:_RANGES])
    more = f" and {len(one.paused) - _RANGES} more" if len(one.paused) > _RANGES else ""
    return (
        one.name, "up", one.version or "-", str(one.clients), waiting, str(one.servers),
        (shown + more) or "-",
    )  # fmt: skip


def _row(node: NodeStatus) -> tuple[str, ...]:
    from shardctl.topology import ranges

    ellipsis = picture.palette(sys.stdout.encoding).ellipsis
    listed = picture.shorten(ranges.of(node.owned), parts=_RANGES, ellipsis=ellipsis)
    owned, live = len(node.owned), len(node.sizes)
    if not owned:
        shards = "none"
    elif node.state == "up" and live != owned:
        shards = f"{live} of {owned}: {listed}"
    else:
        shards = f"{owned}: {listed}"
    clients = "-" if node.sessions is None else str(node.sessions)
    if node.idle_in_transaction:
        clients += f" ({node.idle_in_transaction} idle in transaction)"
    disk = f"{picture.size(node.disk.free_bytes)} free" if node.disk else "-"
    replication = [_standby(s) for s in node.standbys] + [_slot(s) for s in node.slots]
    return (
        node.name,
        node.role or node.state.value,
        node.version or "-",
        picture.duration(node.uptime_s),
        shards,
        picture.size(node.size_bytes),
        picture.number(node.rows),
        clients,
        "-" if node.tps is None else f"{node.tps:.1f}",
        disk,
        "\n".join(replication),
    )


def _standby(one: Standby) -> str:
    lag = "lag unknown" if one.lag_bytes is None else f"{picture.size(one.lag_bytes)} behind"
    seconds = "" if one.lag_s is None else f", {one.lag_s:.1f} s"
    return f"standby {one.name}: {one.state or 'state unknown'}, {lag}{seconds}"


def _slot(one: Slot) -> str:
    does = "active" if one.active else "inactive"
    return f"{one.type} slot {one.name}: {does}, holds {picture.size(one.retained_bytes)} of WAL"


def _picture(found: Status, width: int) -> list[str]:
    """Draw a bar and a strip for each node, then list what is retired."""
    palette = picture.palette(sys.stdout.encoding)
    seen = [node for node in found.nodes if node.size_bytes is not None]
    indent = max((len(node.name) for node in seen), default=0) + 1
    largest = max((size for n in seen for size in n.sizes.values() if size is not None), default=0)
    group = picture.group_of(max((len(n.owned) for n in seen), default=0), width - indent - 2)
    most = max((node.size_bytes or 0 for node in seen), default=0)
    lines = []
    for node in seen:
        drawn = picture.bar(node.size_bytes or 0, most, width=_BAR, palette=palette)
        lines.append(f"{node.name:<{indent}}{drawn} {picture.size(node.size_bytes)}")
        if node.owned:
            sizes = [node.sizes.get(shard) for shard in node.owned]
            shades = picture.strip(sizes, largest, group=group, palette=palette)
            lines.append(f"{'':<{indent}}{palette.edge}{shades}{palette.edge}")
    if any(node.owned for node in seen):
        each = "a shard" if group == 1 else f"the largest of {group} neighbouring shards"
        full = f"{palette.shades[-1]} is {picture.size(largest)}"
        lines.append(f"bars: databases; strips: each character is {each}, {full}")
    retired = [(node.name, one) for node in found.nodes for one in node.retired]
    if retired:
        lines += ["", f"retired schemas: {len(retired)}"]
        lines += [f"  {n}: {one.schema}, {picture.size(one.size_bytes)}" for n, one in retired]
    return lines
