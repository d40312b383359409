"""Why a move must not begin: the family of preflight's refusals."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SHOWN = 5
"""How many names a refusal tells of a kind; the rest is a number."""


class PreflightRefused(ShardctlError):
    """Base of what preflight refuses; `code` names the reason to programs."""

    def __init__(self, where: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.where = where
        self.code = code


class SourceUnfit(PreflightRefused):
    """A source from which, as it is now, shards cannot be moved."""

    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)
        self.node = node


class TargetUnfit(PreflightRefused):
    """A target onto which, as it is now, nothing can be cloned."""

    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)
        self.node = node


class PoolerUnfit(PreflightRefused):
    """A pooler that would not carry its clients through a cutover."""

    def __init__(self, pooler: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}", code, what, hint=hint)
        self.pooler = pooler


class MoveUnfinished(PreflightRefused):
    """Another move that has not ended; there is one at a time in a cluster."""

    def __init__(self, move: str, state: str, nodes: Sequence[str]) -> None:
        super().__init__(
            f"node {', '.join(nodes)}",
            "move_unfinished",
            f"move {move} has not ended (it is {state})",
            hint=f"`shardctl moves show {move}` tells how far it is; `shardctl moves resume` or "
            "`abort` ends it",
        )
        self.move = move


class PauseTooShort(PreflightRefused):
    """A budget that the cutover would surely exceed."""

    def __init__(self, max_pause_s: float, predicted_ms: float, needed_ms: float) -> None:
        super().__init__(
            "the cutover",
            "pause_too_short",
            f"it would take about {predicted_ms:.0f} ms, for which it needs a budget of "
            f"{needed_ms:.0f} ms, and --max-pause gives it {max_pause_s * 1000:.0f} ms",
            hint=f"give it more, such as --max-pause {math.ceil(needed_ms * 2 / 1000)}s, or move "
            "fewer shards at a time",
        )
        self.predicted_ms = predicted_ms
        self.needed_ms = needed_ms


@contextmanager
def collected(problems: list[ShardctlError]) -> Iterator[None]:
    """Add a refusal to the others instead of ending with it: all are told at once."""
    try:
        yield
    except ShardctlError as error:
        problems.extend(error.parts())


def listed(names: Sequence[str], total: int | None = None) -> str:
    """Name the first few of many.

    >>> listed(["a", "b"], 7), listed(["a", "b"])
    ('a, b and 5 more', 'a, b')
    """
    shown = names[:SHOWN]
    more = (len(names) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
