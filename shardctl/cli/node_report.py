"""What the commands of `shardctl node` share: show the plan, ask, carry out, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shardctl.cli.context import note_changes
from shardctl.cli.options import Report
from shardctl.cli.output import confirm, errors_json, print_json, print_table, say
from shardctl.errors import Interrupted, ShardctlError, Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import typer

    from shardctl.provision.plan import Change


class Planned(Protocol):
    """A plan of one of these commands."""

    def changes(self) -> Sequence[Change]:
        """List what it changes, in the order of execution."""

    def as_json(self) -> dict[str, Any]:
        """Give its part of the shape of docs/reference/json.md."""


def run(
    ctx: typer.Context,
    make: Callable[[], Planned],
    carry_out: Callable[[Any], None],
    output: Report,
    *,
    question: str,
    unchanged: str,
    done: Callable[[Any], str],
    dry_run: bool,
    yes: bool,
) -> None:
    """Plan, show, and unless `dry_run`, ask, carry out and report.

    JSON is one object, printed at the end, because it contains the result.
    """
    plan: Planned | None = None
    try:
        plan = make()
        note_changes(ctx, plan.changes())
        if output is Report.table:
            _show(plan, unchanged)
        if plan.changes() and not dry_run:
            confirm(question, yes=yes)
            carry_out(plan)
            say(f"done: {done(plan)}")
    except ShardctlError as error:
        if output is Report.json:
            print_json(_json(plan, error, dry_run=dry_run))
        raise
    if output is Report.json:
        print_json(_json(plan, None, dry_run=dry_run))


def _show(plan: Planned, unchanged: str) -> None:
    changes = plan.changes()
    if not changes:
        print(f"nothing to do: {unchanged}")
        return
    print_table(
        ("where", "action", "what", "name"),
        [(str(c.pooler or c.node), c.action, c.kind, _name(c)) for c in changes],
    )


def _name(change: Change) -> str:
    from shardctl.topology import ranges

    return change.name or (ranges.of(change.shards) if change.shards else "")


def _json(plan: Planned | None, error: ShardctlError | None, *, dry_run: bool) -> dict[str, Any]:
    reported: dict[str, Any] = {"format": 1, "state": _state(plan, error, dry_run=dry_run)}
    reported |= plan.as_json() if plan is not None else {}
    return reported | (errors_json(error) if error is not None else {})


def _state(plan: Planned | None, error: ShardctlError | None, *, dry_run: bool) -> str:
    if isinstance(error, Interrupted):
        return "interrupted"
    if error is not None:
        return "unfinished" if error.exit_code == Unfinished.exit_code else "refused"
    if dry_run:
        return "planned"
    return "done" if plan is not None and plan.changes() else "unchanged"
