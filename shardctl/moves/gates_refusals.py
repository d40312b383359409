"""What poolers do not do in a cutover."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, Unfinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PauseFailed(ShardctlError):
    """Aliases whose transactions did not end in time; all aliases are let go again."""

    def __init__(self, waiting: Mapping[str, tuple[str, ...]], seconds: float) -> None:
        told = "; ".join(
            f"pooler {pooler}: {', '.join(aliases[:5])}{' ...' if len(aliases) > 5 else ''}"
            for pooler, aliases in waiting.items()
        )
        super().__init__(
            f"transactions did not end within {seconds:.1f} s, so the pause does not hold: {told}",
            hint="`shardctl moves resume` tries again; with --terminate it ends them, "
            "and --max-pause gives them more time",
        )
        self.waiting = waiting


class PauseLost(ShardctlError):
    """Aliases that were paused and are not any more: a guard or somebody else resumed them."""

    def __init__(self, pooler: str, resumed: tuple[str, ...]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(resumed)} aliases are not paused any more ({resumed[0]}, ...)",
            hint="`shardctl moves resume` tries again",
        )


class RouteFailed(Unfinished):
    """A pooler that does not offer the moved shards where they are now."""

    def __init__(self, pooler: str, wrong: Sequence[str]) -> None:
        super().__init__(
            f"pooler {pooler}: {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""),
            hint="see its log and `shardctl pgbouncer diff`, then `shardctl moves resume`",
        )


class ResumeFailed(Unfinished):
    """Aliases that a pooler did not resume."""

    def __init__(self, pooler: str, left: Sequence[str]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(left)} aliases are still paused ({left[0]}, ...)",
            hint=f'on its console: RESUME "{left[0]}" and so on; its guard tries, too',
        )
