"""When the documentation lets clients meet errors, and which of a history's errors are in these."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.soak.history import Op

FENCE = frozenset({"42P01", "3F000"})
"""Names that are not there: docs/moves.md, promise 3."""
READ_ONLY = frozenset({"25006"})
TERMINATED = frozenset({"57P01", "57014", "08P01", "08006", "08003", "25P03"})
"""What clients get whose session or transaction was ended, directly or behind a pooler."""
OUTSIDE = "outside"


@dataclass(slots=True)
class Window:
    """A time in which some clients of some shards may get some errors; None is all of them."""

    reason: str
    begin: float
    end: float = math.inf
    shards: frozenset[int] | None = None
    by: frozenset[str] | None = None
    codes: frozenset[str] | None = None

    def allows(self, op: Op) -> bool:
        """Tell whether the error of an operation is one that may be."""
        return (
            op.end >= self.begin
            and op.begin <= self.end
            and (self.shards is None or op.shard in self.shards)
            and (self.by is None or op.by in self.by)
            and (self.codes is None or op.code in self.codes)
        )


def classify(ops: Iterable[Op], windows: Iterable[Window]) -> Counter[tuple[str, str, str]]:
    """Count errors by the reason of the window that allows each, its code, and the client's way."""
    ordered = list(windows)
    found: Counter[tuple[str, str, str]] = Counter()
    for op in ops:
        if op.outcome != "acknowledged":
            reason = next((one.reason for one in ordered if one.allows(op)), OUTSIDE)
            found[reason, op.code, op.by] += 1
    return found


def outside(ops: Iterable[Op], windows: Iterable[Window]) -> list[Op]:
    """Give the operations with an error that no window allows."""
    ordered = list(windows)
    return [
        op
        for op in ops
        if op.outcome != "acknowledged" and not any(one.allows(op) for one in ordered)
    ]
