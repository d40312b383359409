"""Why a move must not begin: the classes of preflight's refusals."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from collections.abc import Iterator

COPY_INSTEAD = "move the shards with `shardctl move-shards` instead, which copies them"
"""The hint where a move cannot be reversed."""


class PreflightRefused(ShardctlError):
    """A refusal of preflight; `code` names the reason for programs."""

    def __init__(self, where: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"{where}: {what}", hint=hint)
        self.code = code


class NodeUnfit(PreflightRefused):
    """A source or a target that cannot take part in a move in its present state."""

    def __init__(self, node: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"node {node}", code, what, hint=hint)


class SourceUnfit(NodeUnfit):
    """A source from which shards cannot be moved in its present state."""


class TargetUnfit(NodeUnfit):
    """A target onto which nothing can be cloned in its present state."""


class PoolerUnfit(PreflightRefused):
    """A pooler whose clients would get errors in a cutover."""

    def __init__(self, pooler: str, code: str, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}", code, what, hint=hint)


@contextmanager
def collected(problems: list[ShardctlError]) -> Iterator[None]:
    """Collect a refusal instead of raising it, so that all are reported at once."""
    try:
        yield
    except ShardctlError as error:
        problems.extend(error.parts())
