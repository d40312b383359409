"""How moves are shown: a row each, the steps of one, and one while it is carried out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardctl.cli import picture, watch
from shardctl.cli.tables import DROPS, fit

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from shardctl.state.ledger import Entry

HEADER = ("move", "state", "from", "to", "shards", "step", "by", "started", "can")
STEPS = ("step", "state", "took", "error")


def row(entry: Entry) -> tuple[str, ...]:
    """Give the row of a move for programs, with all of its shards."""
    from shardctl.topology import ranges

    shown = entry.as_json()
    return (
        entry.move.id,
        entry.state,
        entry.move.source,
        entry.move.target,
        ranges.of(entry.move.shards),
        shown["step"] or "-",
        entry.move.who,
        shown["started"],
        ", ".join(entry.can()) or "-",
    )


def short_row(entry: Entry) -> tuple[str, ...]:
    """Give the row of a move for people."""
    move, state, source, target, shards, *rest = row(entry)
    return (move, state, source, target, picture.shorten(shards), *rest)


def steps(entry: Entry) -> list[tuple[str, ...]]:
    """Give a row for each step of a move."""
    return [(s.step, s.state, _ms(s.took_ms), s.error or "") for s in entry.steps]


def copied(entry: Entry) -> str:
    """Say how far its copy is, if that is known."""
    return picture.copied(entry.progress, datetime.now(UTC)) if entry.progress else ""


def reverse(entry: Entry) -> str:
    """Say whether a move can be reversed, and until when; empty where nothing was kept for that."""
    found = entry.reverse
    if found is None:
        return ""
    until = f"{found.until.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    held = (
        ""
        if found.held_bytes is None
        else f"; node {entry.move.target} holds {picture.size(found.held_bytes)} of WAL for that"
    )
    return {
        "open": f"can be reversed until {until}",
        "begun": f"move {found.move} reverses it",
        "reversed": f"move {found.move} has reversed it",
        "expired": f"could be reversed until {until}",
        "lost": "cannot be reversed: what was kept for that is lost",
        "finished": "cannot be reversed any more",
    }[found.state] + held


def _ms(took: float | None) -> str:
    return "-" if took is None else f"{took:,.1f} ms"


def until_over(
    entry: Entry,
    look: Callable[[], Entry],
    seconds: float,
    *,
    show: Callable[[Entry], None] | None,
) -> Entry:
    """Show a move again and again until it is over or Ctrl-C; give what was seen last.

    By `show`, or drawn in place where that is None.
    """
    last = entry

    def draw(width: int) -> tuple[RenderableType, bool]:
        nonlocal last
        from rich.console import Group
        from rich.text import Text

        last = look()
        drawn = Group(
            fit(HEADER, [short_row(last)], width, drops=DROPS),
            fit(STEPS, steps(last), width),
            Text(copied(last)),
        )
        return drawn, last.open

    def again() -> bool:
        nonlocal last
        last = look()
        if last.open and show is not None:
            show(last)
        return last.open

    if show is None:
        watch.in_place(seconds, draw, transient=True)
    else:
        watch.every(seconds, again)
    return last
