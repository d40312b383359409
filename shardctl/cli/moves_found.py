"""What commands about moves share: find one, and report its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.ledger import Ledger
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology


def report_step(move: str, *, undoing: bool = False) -> Callable[[Step], None]:
    """Return the callback that prints each step as it begins."""

    def one(step: Step) -> None:
        say(
            f"move {move}: " + (f"undo {step.name}" if undoing else f"{step.name}: {step.sentence}")
        )

    return one


def find(topology: Topology, move: str | None) -> Entry:
    """Find the move; report unreachable nodes, whose journals may have others."""
    from shardctl.moves import service

    ledger = service.read(topology)
    report_unread(ledger)
    return ledger.entry(move)


def report_unread(ledger: Ledger) -> None:
    """Name the nodes whose journals could not be read."""
    for node, reason in ledger.unread:
        say(f"shardctl: node {node}: cannot read its journal: {reason}")
