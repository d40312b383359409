"""What each sub-step of a move's cutover took, beside what was predicted: for `moves show`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardctl.moves import cutover, predicted
from shardctl.moves import plan as planning
from shardctl.moves.plan import MovePlan
from shardctl.moves.round_trips import RoundTrips
from shardctl.state import journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology

BEFORE, WAITING, AFTER = "before", "waiting", "after"
"""When a sub-step runs: before clients wait, while they do, and afterwards."""


@dataclass(frozen=True, slots=True)
class Times:
    """One sub-step; None is what was not measured, or is not predicted."""

    name: str
    when: str
    took_ms: float | None
    predicted_ms: float | None

    def as_json(self) -> dict[str, Any]:
        """Give it in the shape of docs/reference/json.md."""
        return {
            "name": self.name,
            "when": self.when,
            "elapsed_ms": self.took_ms,
            "predicted_ms": self.predicted_ms,
        }


def of(topology: Topology, move: Move) -> list[Times]:
    """List the sub-steps of a move's last cutover, in their order.

    Those of one that was undone end where it stopped. Of a move that has not begun its cutover they
    are all that there will be, with the prediction.
    """
    plan, report = MovePlan.of_journal(move), move.report or {}
    attempt = report if "timeline" in report else report.get(journal.UNDONE, {})
    spans: Sequence[tuple[str, float]] = attempt.get("timeline", ())
    expected = _predicted(topology, plan, report, attempt)
    if not spans:
        spans = [(row.name, -1.0) for row in cutover.of(plan).rows]
    when = _when([name for name, _ in spans])
    return [
        Times(name, at, None if took < 0 else took, expected.get(name))
        for (name, took), at in zip(spans, when, strict=True)
    ]


def _predicted(
    topology: Topology, plan: MovePlan, report: Mapping[str, Any], attempt: Mapping[str, Any]
) -> dict[str, float]:
    """Give what was predicted then; else what is predicted now, where the topology still fits."""
    if (noted := attempt.get("predicted_timeline")) is not None:
        return dict(noted)
    if plan.source not in topology.nodes:
        return {}
    found = _now(planning.before(topology, plan), plan, report)
    return {name: round(ms, 1) for name, ms in found.items()}


def _now(topology: Topology, plan: MovePlan, report: Mapping[str, Any]) -> dict[str, float]:
    parts = report.get(journal.REHEARSAL, {}).get("parts_ms")
    if parts is None:
        return predicted.ms(topology, plan, RoundTrips(), 0)
    return predicted.measured_ms(topology, plan, RoundTrips(), parts)


def _when(names: Sequence[str]) -> list[str]:
    """Say of each sub-step when it runs: clients wait from `pause` on.

    >>> _when(["logins", "pause", "fence", "route", "serve"])
    ['before', 'waiting', 'waiting', 'waiting', 'after']
    >>> _when(["pause", "undo: resume", "undo: end"])
    ['waiting', 'waiting', 'after']
    """
    last = next((name for name in ("route", "undo: resume") if name in names), None)
    begins = names.index("pause") if "pause" in names else len(names)
    ends = len(names) if last is None else names.index(last)
    return [BEFORE if n < begins else WAITING if n <= ends else AFTER for n in range(len(names))]
