"""What a check finds, and the rules that give each code its severity and its texts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.meter import duration, size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


ERROR, WARNING, NOTE = ((severity,) for severity in Severity)
"""Severities of a rule that has one; added, of one that has several, the usual first."""


class Rule(NamedTuple):
    """What a code stands for: the severities that it can have, and the texts of its findings.

    A `{word}` in a text is what the finding has under that name; a number that is a `..._bytes`
    or `..._s` is written with units.
    """

    severities: tuple[Severity, ...]
    actual: str
    expected: str
    hint: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a check, or of a part of it, by code."""

    check: str
    of: Mapping[str, Rule]

    def finding(
        self,
        code: str,
        severity: Severity | None = None,
        *,
        node: NodeName | None = None,
        pooler: PoolerName | None = None,
        shards: Sequence[ShardId] = (),
        object: str | None = None,  # noqa: A002  # the field's name
        **words: object,
    ) -> Finding:
        """Make a finding; the first severity of its rule is the usual one."""
        rule = self.of[code]
        known = {name: _shown(name, word) for name, word in words.items()}
        known |= {"node": node, "pooler": pooler, "object": object}
        actual, expected, hint = (text.format(**known) for text in rule[1:])
        severity = severity or rule.severities[0]
        place = (node, pooler, tuple(shards), object)
        return Finding(self.check, code, severity, actual, expected, hint, *place)


def _shown(name: str, word: object) -> object:
    if isinstance(word, int) and name.endswith("_bytes"):
        return size(word)
    return duration(word) if isinstance(word, int) and name.endswith("_s") else word
