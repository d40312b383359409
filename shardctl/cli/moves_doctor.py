"""`shardctl moves doctor`: what moves have left behind, listed and cleared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer  # the command's signature is read when it is called

from shardctl.cli import picture
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    Listing,
    ListingOption,
    LockWaitOption,
    YesOption,
)
from shardctl.cli.output import (
    confirm,
    end_plan,
    plural,
    print_at_end,
    print_csv,
    print_table,
    print_tsv,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.moves.doctor import Left
    from shardctl.provision.agreement import NodeLeftOut
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology

_HEADER = ("node", "kind", "name", "move", "detail", "WAL held", "verdict")


def doctor(
    ctx: typer.Context,
    *,
    output: ListingOption = Listing.table,
    dry_run: DryRunOption = False,
    lock_wait: LockWaitOption = None,
    yes: YesOption = False,
) -> None:
    """List what ended moves have left on any node, show it, and clear it.

    Slots, publications, subscriptions, origins, roles and their settings, triggers and guards,
    copies that were never opened, rows about streams. Safe at any time and repeatable: what an
    open move owns stays, and so do what a reverse needs and everything of a move whose journal
    cannot be read. Where a server restart has ended the guard of a slot that is kept for a reverse,
    it is started again. Exit code 3 if a node could not be read.
    """
    from shardctl.errors import together
    from shardctl.moves import doctor as looking
    from shardctl.moves import reversing
    from shardctl.provision.agreement import NodeLeftOut
    from shardctl.state import lock

    topology = load_topology(ctx, lock_wait=lock_wait)
    fleet = looking.look(topology, purpose=lock.purpose(looking.COMMAND))
    skipped = [NodeLeftOut(node, reason) for node, reason in fleet.unread.items()]
    found = looking.left(fleet)
    _show(found, output, skipped)
    chosen = [one for one in found if one.why_not is None]
    unguarded = reversing.unguarded(fleet.ledger.entries)
    for entry in unguarded:
        say(f"move {entry.move.id}: the slot for its reverse has lost its guard")
    note_changes(ctx, [*chosen, *unguarded])
    if not dry_run and (chosen or unguarded):
        _clear(topology, chosen, unguarded, yes=yes)
    if skipped:
        end_plan()
        raise together(skipped)


def _clear(
    topology: Topology, chosen: Sequence[Left], unguarded: Sequence[Entry], *, yes: bool
) -> None:
    from shardctl.moves import doctor_clear, reversing

    again = f" and start {plural(len(unguarded), 'guard')} again" if unguarded else ""
    confirm(f"Clear {plural(len(chosen), 'object')}{again}?", yes=yes)
    for entry in unguarded:
        reversing.guard(topology, entry)
    cleared: list[Left] = []
    doctor_clear.clear(topology, chosen, cleared.append)
    say(f"done: {plural(len(cleared), 'object')} cleared")


def _show(found: Sequence[Left], output: Listing, skipped: Sequence[NodeLeftOut]) -> None:
    rows = [_row(one) for one in found]
    if output is Listing.json:
        print_at_end({"format": 1, "left": [one.as_json() for one in found]})
    elif output is Listing.tsv:
        print_tsv(rows)
    elif output is Listing.csv:
        print_csv((_HEADER, *rows))
    elif not found:
        where = "the nodes that could be read" if skipped else "any node"
        print(f"nothing to clear: moves have left nothing on {where}")
    else:
        print_table(_HEADER, rows)


def _row(left: Left) -> tuple[str, ...]:
    one = left.object
    held = "-" if one.held_bytes is None else picture.size(one.held_bytes)
    verdict = left.why_not or "may be cleared"
    return (left.node, one.kind, one.name, one.move, one.detail or "-", held, verdict)
