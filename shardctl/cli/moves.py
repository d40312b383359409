"""`shardctl moves` and `prune`: list, show, end and reverse moves, and clear what they left."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import moving, picture
from shardctl.cli import progress as watching
from shardctl.cli.command import App, Changing, Context, load_topology, run_change
from shardctl.cli.moving import find
from shardctl.cli.options import ListingOption, ReportOption, WatchOption, dangerous
from shardctl.cli.output import draw, emit, plural, print_json, say, width

if TYPE_CHECKING:
    from shardctl.fanout import Progress
    from shardctl.moves.doctor import Left
    from shardctl.moves.plan import MovePlan
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

app = App()

MoveArgument = Annotated[
    str | None, typer.Argument(help="The move's id; the unfinished move by default.")
]
TimelineOption = Annotated[
    bool, typer.Option(help="Draw the sub-steps of the cutover, beside what was predicted.")
]
ShownArgument = Annotated[
    str | None, typer.Argument(help="The move's id; the newest move by default.")
]
DoneMoveArgument = Annotated[str, typer.Argument(help="The id of a move that is done.")]
_LEFT = ("node", "kind", "name", "move", "detail", "WAL held", "verdict")


@app.command("list")
def list_moves(ctx: Context, *, output: ListingOption = "table") -> None:
    """List all moves, the newest first."""
    ledger = moving.read(load_topology(ctx))
    parts = moving.PARTS if output == "table" else None
    emit(
        output,
        moving.HEADER,
        [moving.row(entry, parts) for entry in ledger.entries],
        {"moves": [entry.as_json() for entry in ledger.entries]},
        nothing="no move has started yet",
    )


@app.command()
def show(
    ctx: Context,
    move: ShownArgument = None,
    *,
    output: ReportOption = "table",
    watch: WatchOption = None,
    timeline: TimelineOption = False,
) -> None:
    """Show a move: its steps, its progress, and the cutover's sub-steps in milliseconds.

    With --watch, it refreshes until the move has ended, or Ctrl-C. With --timeline, it draws each
    sub-step of the cutover as a bar, beside what was predicted for it.
    """
    from shardctl.moves import prediction

    topology = load_topology(ctx)

    def look() -> tuple[Entry, bool]:
        nonlocal move
        ledger = moving.read(topology)
        entry = ledger.newest() if move is None else ledger.entry(move)
        move = entry.move.id
        return entry, entry.open

    def drawn(entry: Entry, width: int) -> str:
        return moving.shown(topology, entry, width, timeline=timeline)

    def show_it(entry: Entry) -> None:
        if output == "table":
            draw(drawn(entry, width()))
        else:
            found = moving.as_json(entry)
            if timeline:
                times = prediction.sub_step_times(topology, entry.move)
                found["timeline"] = [asdict(one) for one in times]
            print_json({"format": 1, **found})

    if watch is None:
        show_it(look()[0])
    else:
        watching.watch(watch.total_seconds(), look, drawn, show_it, output)


@app.command(cls=moving.Resuming)
def resume(
    ctx: Context,
    move: MoveArgument = None,
    *,
    source_destroyed: Annotated[
        bool, dangerous("Confirm that the source is permanently lost; the target owns the shards.")
    ] = False,
) -> None:
    """Continue an unfinished move where it stopped; another operator may have started it.

    A move that stopped before its point of no return tries its cutover again; a later one is
    finished. If the source is permanently lost, the move ends only with --source-destroyed.
    """
    from shardctl.moves import service

    given = service.Given(
        max_pause_s=moving.max_pause_s(ctx.obj),
        max_wal_bytes=ctx.obj.shared["max_wal"],
        terminate=ctx.obj.shared["terminate"],
        source_destroyed=source_destroyed,
    )
    topology = load_topology(ctx)
    entry = find(topology, move)
    service.require_resumable(topology, entry, given)

    moving.change(
        ctx,
        topology,
        entry,
        lambda progress: service.resume(topology, entry, progress, say, given),
        question=f"Resume move {entry.move.id}?",
        report=moving.show_end,
        done=moving.ending,
    )


@app.command(cls=Changing)
def abort(
    ctx: Context,
    move: MoveArgument = None,
    *,
    target_destroyed: Annotated[
        bool, dangerous("Confirm that the target is permanently lost: nothing is undone there.")
    ] = False,
) -> None:
    """Abort a move before its point of no return: the source keeps its shards.

    Lifts the fence, serves the clients, deletes the copy that this move made, and drops its slot.
    Where a streamed move's target is permanently lost, --target-destroyed closes the move without
    it.
    """
    from shardctl.moves import service

    topology = load_topology(ctx)
    entry = find(topology, move)
    service.require_abortable(topology, entry, with_target=not target_destroyed)

    moving.change(
        ctx,
        topology,
        entry,
        lambda progress: service.abort(
            topology,
            entry,
            progress,
            say,
            target_destroyed=target_destroyed,
        ),
        question=f"Abort move {entry.move.id} and delete its copy on {entry.move.target}?",
        done=lambda _: (
            f"move {entry.move.id} is aborted; node {entry.move.source} still owns its shards"
        ),
    )


@app.command(cls=moving.Cutover)
def reverse(
    ctx: Context,
    move: DoneMoveArgument,
) -> None:
    """Give a streamed move's shards back to the node that they came from, without a copy.

    The retired copies there get their names back, closed to clients, and follow the changes since
    the move. Then the cutover is that of any streamed move. It is a move of its own: `moves resume`
    continues it, and `moves abort` undoes it until its point of no return; after an abort, the
    move can no longer be reversed. A reverse itself cannot be reversed.
    """
    from shardctl.moves import reverse_kept

    found: list[Entry] = []

    def decide(now: Topology) -> MovePlan:
        found.append(find(now, move))
        retain_s = found[-1].move.plan["options"]["retain_s"]
        options = moving.options_of(ctx.obj, now, retain_s=retain_s)
        return reverse_kept.plan_reverse(now, found[-1], options)

    topology, decided, facts = moving.planned(load_topology(ctx), decide)
    kept = found[-1].reverse
    held = None if kept is None else kept.held_bytes
    moving.start(
        ctx,
        topology,
        decided,
        facts,
        rows=[("reverses", move), ("WAL to read", picture.size(held))],
        plan={"reverses": move, "wal_bytes": held},
        question=f"Give {plural(len(decided.shards), 'shard')} back to {decided.target}?",
        # `moves finish` may have given it up since the operator looked.
        first=lambda: reverse_kept.require_reversible(find(topology, move)),
    )


@app.command(cls=Changing)
def finish(
    ctx: Context,
    move: DoneMoveArgument,
) -> None:
    """Give up the possibility to reverse a move: drop what both nodes keep for it.

    The target stops to keep WAL, and `shardctl prune` may drop the retired copies after their
    retention time.
    """
    from shardctl.moves import reverse_kept

    topology = load_topology(ctx)
    entry = find(topology, move)
    reverse_kept.require_finishable(entry)

    moving.change(
        ctx,
        topology,
        entry,
        lambda _: reverse_kept.finish(topology, entry, notice=say),
        question=f"Give up reversing move {entry.move.id}?",
        done=lambda _: f"move {entry.move.id} can no longer be reversed",
    )


@app.command(cls=Changing)
def doctor(
    ctx: Context,
    *,
    output: ListingOption = "table",  # noqa: ARG001  # the settings have it
) -> None:
    """List what ended moves have left on any node, show it, and clear it.

    Slots, publications, subscriptions, roles, triggers and guards, copies that were never opened,
    rows about streams. Safe at any time and repeatable: what an open move owns stays, and so do
    what a reverse needs and everything of a move whose journal cannot be read. Where a server
    restart has ended the guard of a slot that is kept for a reverse, it is started again. Exit code
    3 if a node could not be read.
    """
    from shardctl.moves import doctor as looking
    from shardctl.moves import reverse_kept
    from shardctl.provision.maps import NodeLeftOut
    from shardctl.state import lock

    topology = load_topology(ctx)
    fleet = looking.look(topology, purpose=lock.purpose(looking.COMMAND))
    skipped = [NodeLeftOut(node, reason) for node, reason in fleet.unread.items()]
    found = looking.left(fleet)
    chosen = [one for one in found if one.why_not is None]
    where = "the nodes that could be read" if skipped else "any node"
    unguarded = reverse_kept.unguarded(fleet.ledger.entries)
    for entry in unguarded:
        say(f"move {entry.move.id}: the slot for its reverse has lost its guard")
    again = f" and start {plural(len(unguarded), 'guard')} again" if unguarded else ""

    def clear(_: Progress) -> int:
        for entry in unguarded:
            reverse_kept.guard(topology, entry)
        cleared: list[Left] = []
        looking.clear(topology, chosen, cleared.append)
        return len(cleared)

    run_change(
        ctx,
        pending=[*chosen, *unguarded],
        header=_LEFT,
        rows=map(_left_row, found),
        nothing="" if unguarded else f"nothing to clear: moves have left nothing on {where}",
        plan={"left": [one.as_json() for one in found]},
        question=f"Clear {plural(len(chosen), 'object')}{again}?",
        carry_out=clear,
        done=lambda count: f"done: {plural(count, 'object')} cleared",
        left_out=skipped,
    )


def _left_row(left: Left) -> tuple[str, ...]:
    one = left.object
    held = "-" if one.held_bytes is None else picture.size(one.held_bytes)
    verdict = left.why_not or "may be cleared"
    return (left.node, one.kind, one.name, one.move, one.detail or "-", held, verdict)


prune_app = App()


@prune_app.command(cls=Changing)
def prune(
    ctx: Context,
    *,
    now: Annotated[bool, typer.Option(help="Ignore the retention time (`retain`).")] = False,
    accept_unconfirmed: Annotated[
        bool, typer.Option(help="Include moves whose rows could not be compared.")
    ] = False,
) -> None:
    """Drop the retired schemas of closed moves, after proof that their rows are live elsewhere.

    It keeps a schema if its move is not closed or was not compared, `retain` has not passed, the
    nodes' maps disagree, or the owner does not have the shard, and lists each with its reason. One
    that a session or an object outside uses is kept, too, when it would be dropped (exit code 3).
    """
    from shardctl.moves import prune as pruning
    from shardctl.state import lock

    topology = load_topology(ctx)
    ledger = moving.read(topology)
    found = pruning.plan(
        topology,
        ledger,
        accept_unconfirmed=accept_unconfirmed,
        now=now,
        purpose=lock.purpose(pruning.COMMAND),
    )
    chosen = [one for one in found if one.why_not is None]
    size = sum(one.size_bytes for one in chosen)
    counted = f"{plural(len(chosen), 'retired schema')} ({picture.size(size)})"

    run_change(
        ctx,
        pending=chosen,
        header=("node", "schema", "size", "verdict"),
        rows=[
            (o.node, o.schema, picture.size(o.size_bytes), o.why_not or "may be dropped")
            for o in found
        ],
        nothing="nothing to prune: no node has retired schemas",
        plan={
            "retired": [one.as_json() for one in found],
            "reclaimed_bytes": size,
        },
        question=f"Drop {counted}?",
        carry_out=lambda progress: pruning.carry_out(
            topology, chosen, progress, accept_unconfirmed=accept_unconfirmed
        ),
        done=lambda _: f"done: {counted} dropped; the space is free",
    )
