"""What commands that change something have in common: show the plan, ask, carry it out, report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from shardctl.cli.output import confirm, emit, print_json, say
from shardctl.errors import ShardctlError, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import typer

    from shardctl.cli.context import Settings
    from shardctl.fanout import Progress


T = TypeVar("T")


def run(
    ctx: typer.Context,
    *,
    pending: object,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    plan: Mapping[str, Any],
    question: str,
    carry_out: Callable[[Progress], T],
    done: Callable[[T], str],
    result: Callable[[T], Mapping[str, Any]] | None = None,
    report: Callable[[T], None] | None = None,
    nothing: str = "",
    notes: Sequence[str] = (),
    left_out: Sequence[ShardctlError] = (),
) -> T | None:
    """Show the plan; unless it is a dry run or nothing is `pending`, ask and carry it out.

    JSON is one object at the end: the `plan` of a dry run, else its `result`, which is the plan
    where that is None. `report` prints a result for people, and `done` gives the last line.
    `left_out` are raised at the end. Returns what `carry_out` returned; raises what it and
    `confirm` raise.
    """
    from shardctl.cli.progress import bars

    settings: Settings = ctx.obj
    settings.pending = bool(pending)
    if not settings.json:
        emit(settings.output, header, rows, plan, nothing=nothing)
    for note in notes:
        say(f"note: {note}")
    found: T | None = None
    said = ""
    if pending and not settings.dry_run:
        confirm(question, yes=settings.yes)
        with bars() as progress:
            found = carry_out(progress)
        plan = plan if result is None else result(found)
        if report is not None and not settings.json:
            report(found)
        said = done(found)
    if settings.json:
        print_json({"format": 1, **plan})
    if said:
        say(said)
    if left_out:
        raise together(left_out)
    return found
