"""The answers of many places, folded: equal commands, equal errors, columns that differ."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardctl.errors import ShardctlError, incomplete_if
from shardctl.maintenance.sql import Answer
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.maintenance.places import Place
    from shardctl.maintenance.sql import Column, Failure, Row, Run

READ_ONLY = "25006"
"""The SQLSTATE of what would write in a transaction that only reads."""

Columns = tuple["Column", ...]


@dataclass(slots=True)
class Folded:
    """All answers of a run, to be shown when it has ended."""

    tables: dict[tuple[int, Columns], list[tuple[Place, Row]]] = field(default_factory=dict)
    """Rows by statement (from 1) and columns."""
    commands: dict[tuple[int, str], list[Place]] = field(default_factory=dict)
    """Places by statement and tag, of statements that give no rows."""

    def add(self, answer: Answer) -> None:
        """Take one more."""
        if not answer.columns:
            command = (answer.statement, answer.command or "")
            self.commands.setdefault(command, []).append(answer.place)
            return
        found = self.tables.setdefault((answer.statement, answer.columns), [])
        found += [(answer.place, row) for row in answer.rows]


def errors(run: Run) -> list[ShardctlError]:
    """Give an error for each reason for which places failed."""
    groups: dict[tuple[int | None, str | None, str, bool], list[Failure]] = defaultdict(list)
    # Answers come as they come; the first shard's stands for the equal ones each time.
    for one in sorted(run.failed, key=lambda one: (one.place.shard or 0, one.place.node)):
        # What names the shard's own schema is one reason all the same.
        said = one.message.replace(one.place.schema, "{}") if one.place.schema else one.message
        groups[one.statement, one.sqlstate, said, one.unknown].append(one)
    changed = run.plan.write and (bool(run.done) or any(one.unknown for one in run.failed))
    return [
        incomplete_if(
            changed,
            "places_failed",
            f"{where([one.place for one in group])}: {_reason(run, group[0])}",
            hint=_hint(run, group),
        )
        for group in groups.values()
    ]


def _reason(run: Run, first: Failure) -> str:
    state = f" (SQLSTATE {first.sqlstate})" if first.sqlstate else ""
    which = ""
    if first.statement is not None and len(run.plan.statements) > 1:
        line = run.plan.statements[first.statement - 1].line
        which = f"statement {first.statement} (line {line}): "
    return f"{which}{first.message}{state}"


def _hint(run: Run, group: Sequence[Failure]) -> str:
    first = group[0]
    if first.unknown:
        return (
            "the connection was lost during COMMIT: check there whether the statement was committed"
        )
    if run.plan.write and run.done:
        again = rest([one.place for one in group])
        return f"it was committed in {where(run.done)}; to run it only where it failed: {again}"
    if first.error is not None:
        return first.error.hint
    if first.sqlstate == READ_ONLY and not run.plan.write:
        return "by default statements can only read; add --write to allow changes"
    return "nothing was changed; fix the statement, or what the message names"


def rest(places: Sequence[Place]) -> str:
    """Name which option names places."""
    shards = [place.shard for place in places if place.shard is not None]
    return f"--shards {ranges.of(shards)}" if shards else f"on {where(places)}, in psql"


def where(places: Sequence[Place]) -> str:
    """Name places: `shards 0-3`, `nodes a, b`."""
    shards = sorted(place.shard for place in places if place.shard is not None)
    if shards:
        return f"shard{'s' if len(shards) > 1 else ''} {ranges.of(shards)}"
    nodes = dict.fromkeys(place.node for place in places)
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"


def as_json(one: Answer | Failure) -> dict[str, Any]:
    """Give the shape of docs/reference/json.md."""
    found: dict[str, Any] = {
        "shard": one.place.shard,
        "node": one.place.node,
        "statement": one.statement,
        "columns": [],
        "rows": [],
        "command": None,
        "error": None,
    }
    if not isinstance(one, Answer):
        said = {"sqlstate": one.sqlstate, "message": one.message, "unknown": one.unknown}
        return found | {"error": said}
    return found | {
        "columns": [{"name": column.name, "type": column.type} for column in one.columns],
        "rows": [
            [_value(text, column) for text, column in zip(row, one.columns, strict=True)]
            for row in one.rows
        ],
        "command": one.command,
    }


def _value(text: str | None, column: Column) -> Any:
    """Give a value as JSON has it; what JSON's readers would cut short stays a text."""
    match column.type:
        case _ if text is None:
            return None
        case "bool":
            return text == "t"
        case "int2" | "int4" | "float4" | "float8" | "json" | "jsonb":
            value = json.loads(text)
            return text if isinstance(value, float) and not math.isfinite(value) else value
        case _:
            return text
