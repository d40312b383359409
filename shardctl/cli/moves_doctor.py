"""`shardctl moves doctor`: what moves have left behind, listed and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer  # the command's signature is read when it is called

from shardctl.cli import changing, picture
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption
from shardctl.cli.output import plural, say

if TYPE_CHECKING:
    from shardctl.fanout import Progress
    from shardctl.moves.doctor import Left

_HEADER = ("node", "kind", "name", "move", "detail", "WAL held", "verdict")


def doctor(
    ctx: typer.Context,
    *,
    output: ListingOption = Listing.table,  # noqa: ARG001  # the settings have it
) -> None:
    """List what ended moves have left on any node, show it, and clear it.

    Slots, publications, subscriptions, roles, triggers and guards, copies that were never opened,
    rows about streams. Safe at any time and repeatable: what an open move owns stays, and so do
    what a reverse needs and everything of a move whose journal cannot be read. Where a server
    restart has ended the guard of a slot that is kept for a reverse, it is started again. Exit code
    3 if a node could not be read.
    """
    from shardctl.moves import doctor as looking
    from shardctl.moves import reversing
    from shardctl.provision.agreement import NodeLeftOut
    from shardctl.state import lock

    topology = load_topology(ctx)
    fleet = looking.look(topology, purpose=lock.purpose(looking.COMMAND))
    skipped = [NodeLeftOut(node, reason) for node, reason in fleet.unread.items()]
    found = looking.left(fleet)
    chosen = [one for one in found if one.why_not is None]
    unguarded = reversing.unguarded(fleet.ledger.entries)
    for entry in unguarded:
        say(f"move {entry.move.id}: the slot for its reverse has lost its guard")
    again = f" and start {plural(len(unguarded), 'guard')} again" if unguarded else ""
    where = "the nodes that could be read" if skipped else "any node"

    def clear(_: Progress) -> int:
        for entry in unguarded:
            reversing.guard(topology, entry)
        cleared: list[Left] = []
        looking.clear(topology, chosen, cleared.append)
        return len(cleared)

    changing.run(
        ctx,
        pending=[*chosen, *unguarded],
        header=_HEADER,
        rows=map(_row, found),
        nothing=f"nothing to clear: moves have left nothing on {where}",
        plan={"left": [one.as_json() for one in found]},
        question=f"Clear {plural(len(chosen), 'object')}{again}?",
        carry_out=clear,
        done=lambda count: f"done: {plural(count, 'object')} cleared",
        left_out=skipped,
    )


def _row(left: Left) -> tuple[str, ...]:
    one = left.object
    held = "-" if one.held_bytes is None else picture.size(one.held_bytes)
    verdict = left.why_not or "may be cleared"
    return (left.node, one.kind, one.name, one.move, one.detail or "-", held, verdict)
