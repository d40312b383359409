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
    """What preflight refuses; `code` names the reason to programs."""

    def __init__(self, where: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.code = code


class _NodeUnfit(PreflightRefused):
    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)


class SourceUnfit(_NodeUnfit):
    """A source from which, as it is now, shards cannot be moved."""


class TargetUnfit(_NodeUnfit):
    """A target onto which, as it is now, nothing can be cloned."""


class PoolerUnfit(PreflightRefused):
    """A pooler that would not carry its clients through a cutover."""

    def __init__(self, pooler: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}", code, what, hint=hint)


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
