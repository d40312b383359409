"""The result of `verify` as a monitoring plugin prints it: a line, performance data, 0 to 3."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from shardctl.cli import findings
from shardctl.cli.output import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.checks.verify import Report
    from shardctl.errors import ShardctlError

_LONGEST = 300
"""Characters of the text: what shows such lines cuts them off."""


class State(IntEnum):
    """The exit codes of the Monitoring Plugins' guidelines."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


def of(report: Report, *, strict: bool = False) -> tuple[State, str]:
    """Give the state and the line of a run; with `strict` a warning is critical, too."""
    counts = report.counts()
    if not report.ok(strict=strict):
        state = State.CRITICAL
    else:
        state = State.WARNING if counts["warning"] else State.OK
    poolers = f" and {plural(report.poolers, 'pooler')}" if report.poolers else ""
    where = f"{plural(report.shards, 'shard')} on {plural(report.nodes, 'node')}{poolers}"
    text = f"cluster {report.cluster}: {_found(report) or f'{where} verified'}"
    data = [
        f"errors={counts['error']};;0;0",
        f"warnings={counts['warning']};0;;0",
        f"notes={counts['note']};;;0",
        f"nodes={report.nodes};;;0",
        f"shards={report.shards};;;0",
        f"poolers={report.poolers};;;0",
        f"time={report.elapsed_ms / 1000:.3f}s;;;0",
    ]
    return state, _line(state, text, data)


def unknown(errors: Sequence[ShardctlError]) -> str:
    """Give the line of a run that could not examine the fleet."""
    first = errors[0]
    hint = f" ({first.hint})" if first.hint else ""
    more = f"; and {plural(len(errors) - 1, 'problem')} more" if len(errors) > 1 else ""
    return _line(State.UNKNOWN, f"{first}{more}{hint}")


def _found(report: Report) -> str:
    """Count errors and warnings and describe the gravest; empty if there are none."""
    for severity in ("error", "warning"):
        first = next((one for one in report.findings if one.severity == severity), None)
        if first is None:
            continue
        counts = report.counts()
        counted = [plural(counts[one], one) for one in ("error", "warning") if counts[one]]
        what = f"{first.check}: {findings.subject(first)}: {findings.difference(first)}"
        return f"{', '.join(counted)}: {what}"
    return ""


def _line(state: State, text: str, data: Sequence[str] = ()) -> str:
    r"""Write one line; a bar begins the performance data, so the text has none.

    >>> _line(State.OK, "a |\nb", ["errors=0"])
    'SHARDCTL OK - a / b | errors=0'
    """
    plain = " ".join(text.replace("|", "/").split())
    short = plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 3]}..."
    return " | ".join([f"SHARDCTL {state.name} - {short}", *([" ".join(data)] if data else [])])
