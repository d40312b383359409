"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName, PoolerName, ShardId


class Severity(StrEnum):
    """How grave a finding is; only errors make `verify` fail (and warnings, with --strict)."""

    error = "error"
    warning = "warning"
    note = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; node, pooler or shards give the place.

    `code` names the kind within its check and never changes. `object` is a relation, column,
    function, slot, move or file. `hint` names the command that fixes it.
    """

    check: str
    code: str
    severity: Severity
    actual: str
    expected: str
    hint: str
    node: NodeName | None = None
    pooler: PoolerName | None = None
    shards: tuple[ShardId, ...] = ()
    object: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "check": self.check,
            "code": self.code,
            "severity": self.severity.value,
            "node": self.node,
            "pooler": self.pooler,
            "shards": list(self.shards),
            "object": self.object,
            "actual": self.actual,
            "expected": self.expected,
            "hint": self.hint,
        }
