"""Which errors docs/moves.md lets clients meet in an operation, beside those of its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.soak.fleet import MAX_PAUSE_S
from tests.soak.scene import GRACE_S
from tests.soak.schedule import MOVING
from tests.soak.windows import FENCE, READ_ONLY, TERMINATED, Window

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tests.soak.observer import Seen
    from tests.soak.schedule import Episode

BY_MAP = frozenset({"direct", "p1 by nodes"})
"""Clients that choose the node themselves: a fence refuses them, where others wait."""


def of_operation(
    episode: Episode, shards: Iterable[int], begin: float, end: float
) -> Iterator[Window]:
    """Give the windows of an operation on these shards."""
    moved = frozenset(shards)
    if episode.operation == "read-only":
        yield Window("read-only on", begin, end, moved, codes=READ_ONLY)
    if episode.operation not in MOVING:
        return
    reason = "a fence, for clients with a map"
    yield Window(reason, begin, end, moved, BY_MAP, FENCE | READ_ONLY)
    if "--read-only" in episode.words:
        yield Window("a move with --read-only", begin, end, moved, codes=READ_ONLY)
    if "--terminate" in episode.words:
        yield Window("a move with --terminate", begin, end, moved, codes=TERMINATED)


def of_clones(moves: Mapping[str, Seen], disturbed: Collection[str]) -> Iterator[Window]:
    """Give the one window of each clone that a fault has disturbed, or whose promotion was slow.

    Its shards are unserved between the decision and the claim, and until the poolers are routed.
    """
    for move, seen in moves.items():
        if seen.handover != "clone" or seen.claimed == float("inf"):
            continue
        if move in disturbed or seen.claimed - seen.undoable > MAX_PAUSE_S:
            reason, end = "a clone between its decision and its claim", min(seen.routed, seen.ended)
            moved = frozenset(seen.shards)
            yield Window(reason, seen.undoable, end + GRACE_S, moved, codes=FENCE | READ_ONLY)
