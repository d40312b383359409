"""The lint of pending migrations, as `shardctl migrate` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.cli.output import say

if TYPE_CHECKING:
    from shardctl.provision.fleet import FleetPlan
    from shardctl.rollout.lint import Warned


@dataclass(slots=True)
class Linted:
    """What an operator accepts, and what was found in the files of a plan."""

    accepts: tuple[str, ...] = ()
    warnings: tuple[Warned, ...] = field(default=())

    def look(self, plan: FleetPlan) -> FleetPlan:
        """Examine the files of a plan; prints accepted warnings and notes on standard error."""
        from shardctl.rollout import lint

        lint.require_known(self.accepts)
        pending = {one for node in plan.nodes for work in node.shards for one in work.migrations}
        files = sorted(pending, key=lambda one: one.number)
        report = lint.look(files, lint.program())
        self.warnings = report.warnings
        for note in report.notes:
            say(f"note: {note}")
        for one in report.warnings:
            if lint.accepted(one, self.accepts):
                say(f"accepted: {one.text}")
        return plan

    def require_accepted(self) -> None:
        """Refuse what was found and not accepted; raises lint_warnings."""
        from shardctl.rollout import lint

        lint.require_accepted(self.warnings, self.accepts)
