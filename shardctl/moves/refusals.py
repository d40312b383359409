"""Why a move must not begin: the classes of preflight's refusals."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

COPY_INSTEAD = "move the shards with `shardctl move-shards` instead, which copies them"
"""The hint where a move cannot be reversed."""


class Reason(NamedTuple):
    """One of several refusals that a subject has in a table: its code, what is wrong, its hint."""

    code: str
    what: str
    hint: str


class PreflightRefused(ShardctlError):
    """A refusal of preflight; `code` names the reason for programs."""

    def __init__(self, where: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.code = code


class _NodeUnfit(PreflightRefused):
    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)


class SourceUnfit(_NodeUnfit):
    """A source from which shards cannot be moved in its present state."""


class TargetUnfit(_NodeUnfit):
    """A target onto which nothing can be cloned in its present state."""


class PoolerUnfit(PreflightRefused):
    """A pooler whose clients would get errors in a cutover."""

    def __init__(self, pooler: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}", code, what, hint=hint)


class PauseTooShort(PreflightRefused):
    """A budget that the cutover is predicted to exceed."""

    def __init__(self, max_pause_s: float, predicted_ms: float, needed_ms: float) -> None:
        super().__init__(
            "the cutover",
            "pause_too_short",
            f"it is predicted to take {predicted_ms:,.0f} ms and needs a --max-pause of "
            f"{needed_ms:,.0f} ms, but --max-pause is {max_pause_s * 1000:,.0f} ms",
            hint=f"give --max-pause {math.ceil(needed_ms * 2 / 1000)}s, or move fewer shards at a "
            "time",
        )
        self.needed_ms = needed_ms


@contextmanager
def collected(problems: list[ShardctlError]) -> Iterator[None]:
    """Collect a refusal instead of raising it, so that all are reported at once."""
    try:
        yield
    except ShardctlError as error:
        problems.extend(error.parts())
