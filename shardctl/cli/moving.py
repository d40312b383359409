"""What commands that move shards have in common: options, plans, how moves are found and shown."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import picture, progress
from shardctl.cli.command import Changing, made, run_change
from shardctl.cli.options import MS, Duration, Report, dangerous, duration_option, size_option
from shardctl.cli.output import plural, print_json, print_line, print_table, say
from shardctl.cli.tables import fit
from shardctl.meter import listed
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.cli.context import Settings
    from shardctl.fanout import Progress
    from shardctl.moves.plan import MovePlan, Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.state.ledger import Entry, Ledger
    from shardctl.topology.model import Topology


class Identity(StrEnum):
    """Replica identities that a move can lend to tables without one."""

    full = "full"


def _of_moves(
    *,
    max_pause: Annotated[
        Duration | None,
        duration_option("The longest time that clients may wait, for example 2s.", least=MS),
    ] = None,
    max_wal: Annotated[
        int | None, size_option("The most WAL that the source keeps for the move.")
    ] = None,
    terminate: Annotated[bool, dangerous("End transactions that block the cutover.")] = False,
    ignore_standby: Annotated[
        bool, dangerous("Confirm that failover is disabled on the source.")
    ] = False,
    max_rate: Annotated[
        int | None, size_option("Limit the copy rate, for example 50M a second.")
    ] = None,
    identity: Annotated[
        Identity | None,
        typer.Option(
            help="With stream: tables without a replica identity have REPLICA IDENTITY FULL until "
            "the move and its reverse are over."
        ),
    ] = None,
) -> None: ...


class Moving(Changing):
    """A command that moves shards: what limits its moves is in the settings."""

    shared = (*made(_of_moves), *Changing.shared)


class Cutover(Moving):
    """A command that moves shards without another copy."""

    left_out = ("max_rate", "identity")


class Resuming(Moving):
    """A command that goes on with a move, which keeps its other options."""

    left_out = (*Cutover.left_out, "ignore_standby")


def max_pause_s(settings: Settings) -> float | None:
    """Return the value of --max-pause in seconds."""
    pause = settings.shared["max_pause"]
    return pause.total_seconds() if pause else None


def options_of(settings: Settings, topology: Topology, **given: Any) -> Options:
    """Return the options of a move: what is `given`, the command line, then the topology."""
    from shardctl.moves.plan import Options

    shared, move = settings.shared, topology.move
    options: dict[str, Any] = {
        "max_pause_s": max_pause_s(settings) or move.max_pause.total_seconds(),
        "retain_s": move.retain.total_seconds(),
        "max_rate": shared.get("max_rate") or None,
        "max_wal_bytes": shared["max_wal"] or move.max_wal,
        "terminate": shared["terminate"],
        "identity_full": shared.get("identity") is not None,
        "ignore_standby": shared["ignore_standby"],
    }
    return Options(**options | {name: one for name, one in given.items() if one is not None})


def planned(
    topology: Topology, decide: Callable[[Topology], MovePlan]
) -> tuple[Topology, MovePlan, Facts]:
    """Plan a move and check it, again where another command changes the map meanwhile.

    Raises what `decide` and preflight raise, and NodeLocked.
    """
    from shardctl.moves import one_at_a_time, service
    from shardctl.state import lock

    def one(now: Topology) -> tuple[Topology, MovePlan, Facts]:
        decided = decide(now)
        facts = service.preflight(now, decided)
        lock.require_all_free(now, decided.locked, command=service.COMMAND)
        return now, decided, facts

    return one_at_a_time.undisturbed(topology, one)


def start(
    ctx: typer.Context,
    topology: Topology,
    decided: MovePlan,
    facts: Facts,
    *,
    rows: Sequence[tuple[str, str]],
    plan: Mapping[str, Any],
    question: str,
    first: Callable[[], object] | None,
) -> None:
    """Show the plan of a move, ask, call `first`, carry it out and report."""
    from shardctl.moves import service

    def carry_out(progress: Progress) -> Entry:
        if first is not None:
            first()
        service.start(topology, decided, progress, say)
        return service.read(topology).entry(decided.id)

    run_change(
        ctx,
        pending=decided.shards,
        header=("what", "plan"),
        rows=[
            ("move", f"{decided.id}: shards {picture.shorten(ranges.of(decided.shards))}"),
            ("from, to", f"{decided.source} -> {decided.target}"),
            *rows,
            ("WAL kept at most", picture.size(facts.max_wal_bytes)),
            ("clients wait", f"about {facts.predicted_pause_ms:.0f} ms"),
        ],
        notes=facts.notes,
        plan={
            "move": decided.id,
            "source": decided.source,
            "target": decided.target,
            "method": decided.method,
            "shards": list(decided.shards),
            **plan,
            "max_wal_bytes": facts.max_wal_bytes,
            "predicted_pause_ms": facts.predicted_pause_ms,
            "notes": list(facts.notes),
        },
        question=question,
        carry_out=carry_out,
        result=as_json,
        report=show_end,
        done=ending,
    )


HEADER = ("move", "state", "from", "to", "shards", "step", "by", "started", "can")
PARTS = 12
"""Parts of a list of shards that people see."""
_BAR = 24
STEPS = ("step", "state", "ms", "error")


def row(entry: Entry, parts: int | None = None) -> tuple[str, ...]:
    """Give the row of a move; for people, with so many `parts` of the list of its shards."""
    shown, shards = entry.as_json(), ranges.of(entry.move.shards)
    return (
        entry.move.id,
        entry.state,
        entry.move.source,
        entry.move.target,
        shards if parts is None else picture.shorten(shards, parts=parts),
        shown["step"] or "-",
        entry.move.who,
        shown["started"],
        ", ".join(entry.can()) or "-",
    )


def steps(entry: Entry) -> list[tuple[str, ...]]:
    """Give a row for each step of a move."""
    return [(s.step, s.state, _ms(s.took_ms), s.error or "") for s in entry.steps]


def copied(entry: Entry) -> str:
    """Say how far its copy is, if that is known."""
    return picture.copied(entry.progress, datetime.now(UTC)) if entry.progress else ""


def reverse(entry: Entry) -> str:
    """Say whether a move can be reversed, and until when; empty where nothing was kept for that."""
    found = entry.reverse
    if found is None:
        return ""
    until = picture.moment(found.until)
    held = ""
    if found.held_bytes is not None:
        held = f"; node {entry.move.target} holds {picture.size(found.held_bytes)} of WAL for that"
    return {
        "open": f"can be reversed until {until}",
        "begun": f"move {found.move} reverses it",
        "reversed": f"move {found.move} has reversed it",
        "expired": f"could be reversed until {until}",
        "lost": "cannot be reversed: what was kept for that is lost",
        "finished": "cannot be reversed any more",
    }[found.state] + held


def until_over(entry: Entry, look: Callable[[], Entry], seconds: float, output: Report) -> Entry:
    """Show a move again and again until it is over or Ctrl-C; give what was seen last."""
    last = entry

    def again() -> tuple[Entry, bool]:
        nonlocal last
        last = look()
        return last, last.open

    def draw(now: Entry, width: int) -> str:
        shown = (fit(HEADER, [row(now, PARTS)], width), fit(STEPS, steps(now), width))
        return "\n".join([*shown, copied(now)])

    def show(now: Entry) -> None:
        if now.open:  # the last one is shown at the end
            show_move(now, output)

    progress.watch(seconds, again, draw, show, output, transient=True)
    return last


def change(
    ctx: typer.Context,
    topology: Topology,
    entry: Entry,
    carry_out: Callable[[Progress], object],
    *,
    question: str,
    done: Callable[[Entry], str],
    report: Callable[[Entry], None] | None = None,
) -> None:
    """Show a move, ask, change it, and report what has become of it."""

    def change_it(progress: Progress) -> Entry:
        carry_out(progress)
        return find(topology, entry.move.id)

    run_change(
        ctx,
        pending=entry,
        header=HEADER,
        rows=[row(entry, PARTS)],
        plan=entry.as_json(),
        question=question,
        carry_out=change_it,
        result=as_json,
        report=report,
        done=done,
    )


def as_json(entry: Entry) -> dict[str, Any]:
    """Give a move with its steps and its report."""
    return {**entry.as_json(), **entry.details()}


def show_move(entry: Entry, output: Report) -> None:
    """Print a move with its steps and its report."""
    if output is Report.json:
        print_json({"format": 1, **as_json(entry)})
        return
    print_table(HEADER, [row(entry, PARTS)])
    print_table(STEPS, steps(entry))
    if reported := copied(entry):
        print_line(reported)
    print(f"method: {entry.move.method}")
    if (given := entry.move.plan.get("reverses")) is not None:
        print(f"reverse of move {given['move']}")
    if reversible := reverse(entry):
        print_line(reversible)
    _show_report(entry.move.report or {})


def show_end(entry: Entry) -> None:
    """Print how a move ended: for how long clients waited, and what was compared."""
    report = entry.move.report or {}
    if entry.state == "aborted" and (found := report.get("rehearsal")):
        _show_rehearsal(found)
        return
    for line in _result(report):
        print_line(line)


def ending(entry: Entry) -> str:
    """Return the last line of a move: its state, and what comes next."""
    move = entry.move
    if entry.state == "aborted":
        return f"rehearsal {move.id} has ended: both nodes are as they were before it"
    if entry.state == "unconfirmed":
        return f"move {move.id} is unconfirmed: {_doubt(move.proof, move.report or {})}"
    return f"move {move.id} is {entry.state}; {_next(entry)}"


def _next(entry: Entry) -> str:
    """Return what an operator may do with a move that is done, and until or from when."""
    due, said = entry.due, ""
    if entry.reverse is not None and entry.reverse.state == "open":
        until = entry.reverse.until
        due = max(due, until) if due else until
        said = (
            f"until {picture.moment(until)}, `shardctl moves reverse {entry.move.id}` gives the "
            f"shards back, and `moves finish {entry.move.id}` gives that up; "
        )
    when = f"from {picture.moment(due)} on, " if due and due > datetime.now(UTC) else ""
    return f"{said}{when}`shardctl prune` frees the space"


_CLIENTS = {"before": "work", "waiting": "wait", "after": "work"}
"""What clients do while a sub-step runs."""
_ALL_HAD = (
    "; the target had replayed all commits of the source. `shardctl prune` requires "
    "--accept-unconfirmed"
)
_DOUBTS = {
    "": "no rows were compared",
    "forked": "rows could not be compared because the target's snapshot was lost" + _ALL_HAD,
    "differs": "the copies differ, and `shardctl prune` keeps them; `shardctl moves show` lists "
    "the tables",
}


def _doubt(proof: str | None, report: Mapping[str, Any]) -> str:
    """Return why a move is not confirmed."""
    if not (altered := report.get("uncompared")):
        return _DOUBTS[proof or ""]
    return (
        f"{report['tables']} tables are equal, but {listed(altered)} could not be compared: "
        "clients of the target dropped, renamed or altered it before, or it has a value that is "
        f"too large{_ALL_HAD}"
    )


def _show_report(report: dict[str, Any]) -> None:
    """Print the cutover's sub-steps and the result."""
    if spans := report.get("timeline"):
        bars = _bars([ms for _, ms in spans])
        rows = [(name, _ms(ms), bar) for (name, ms), bar in zip(spans, bars, strict=True)]
        print_table(("sub-step", "ms", ""), rows)
    if (found := report.get("rehearsal")) is not None:
        _show_rehearsal(found)
    for pooler, waited in report.get("pooler_waits_ms", {}).items():
        print(f"longest wait at pooler {pooler}: {waited:.0f} ms")
    for line in _result(report):
        print_line(line)


def _result(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a move's report says of the clients, and of the comparison."""
    if (pause := report.get("pause_ms")) is not None:
        predicted = report.get("predicted_pause_ms")
        beside = "" if predicted is None else f" (predicted: {predicted:.0f} ms)"
        waits = report.get("pooler_waits_ms", {}).values()
        if waits and not any(waits):
            yield f"pause {pause:.0f} ms{beside}; no client waited"
        else:
            yield f"clients waited at most {pause:.0f} ms{beside}"
    if report.get("proof") == "compared":
        yield f"compared: {plural(report['tables'], 'table')}, {plural(report['rows'], 'row')}"
    if limit := report.get("wal_limit"):
        held, most = picture.size(limit["held_bytes"]), picture.size(limit["limit_bytes"])
        yield f"its slot was dropped: it held back {held} of WAL, more than the limit of {most}"
    for table in report.get("differing", ()):
        yield f"differs: {table}"


def _show_rehearsal(found: Mapping[str, Any]) -> None:
    """Print the report of a rehearsal."""
    counts = (plural(found["tables"], "table"), plural(found["rows"], "row"))
    size = picture.size(found["size_bytes"])
    print(f"rehearsed: {', '.join(counts)} ({size}) were equal on both nodes at {found['time']}")
    for table in found["differing"]:
        print_line(f"rehearsed: differs: {table}")
    print(
        f"rehearsed: writers waited at most {found['writers_held_ms']:.0f} ms for its locks, "
        f"{found['waited_ms']:.0f} ms of that for open transactions\n"
        f"rehearsed: clients are predicted to wait {found['predicted_pause_ms']:.0f} ms in the "
        "cutover"
    )


def show_timeline(topology: Topology, entry: Entry, output: Report) -> None:
    """Print the timeline of a move; JSON is that of `moves show`, with it."""
    from shardctl.moves import prediction

    found = prediction.sub_step_times(topology, entry.move)
    if output is Report.json:
        timeline = [asdict(one) for one in found]
        print_json({"format": 1, **as_json(entry), "timeline": timeline})
        return
    print(f"move {entry.move.id}: {entry.state}, method {entry.move.method}")
    bars = _bars([one.elapsed_ms for one in found])
    print_table(
        ("sub-step", "clients", "ms", "predicted", ""),
        [
            (one.name, _CLIENTS[one.when], _ms(one.elapsed_ms), _ms(one.predicted_ms), bar)
            for one, bar in zip(found, bars, strict=True)
        ],
    )


def _bars(took: Sequence[float | None]) -> list[str]:
    """Draw what each sub-step took, in one scale."""
    longest = max((ms or 0.0 for ms in took), default=0.0)
    return [picture.bar(ms or 0.0, longest, width=_BAR) for ms in took]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def find(topology: Topology, move: str | None) -> Entry:
    """Find the move; report unreachable nodes, whose journals may have others."""
    return read(topology).entry(move)


def read(topology: Topology) -> Ledger:
    """Read the journals, and name the nodes whose journal could not be read."""
    from shardctl.moves import service

    ledger = service.read(topology)
    for node, reason in ledger.unread:
        say(f"shardctl: node {node}: cannot read its journal: {reason}")
    return ledger
