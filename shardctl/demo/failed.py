"""The one error of the demo's own."""

from __future__ import annotations

from shardctl.errors import ShardctlError


class DemoFailed(ShardctlError):
    """The tour met something that is not as it must be."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the demo failed: {what}", hint="this is a bug; please report it")
