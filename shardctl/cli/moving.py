"""What commands that move shards have in common: options, plans, how moves are found and shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardctl.cli import picture
from shardctl.cli.command import Changing, Context, made, run_change
from shardctl.cli.options import MS, Duration, Settings, dangerous, duration_option, size_option
from shardctl.cli.output import fit, paragraph, plural, print_line, say
from shardctl.printable import one_line
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.moves.plan import MovePlan, Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.state.ledger import Entry, Ledger
    from shardctl.topology.model import Topology


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
        Literal["full"] | None,
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
    ctx: Context,
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


def copied(entry: Entry) -> str:
    """Say how far its copy is, if that is known."""
    return picture.copied(entry.progress, datetime.now(UTC)) if entry.progress else ""


def reverse(entry: Entry) -> str:
    """Say how it is with the reverse of a move; empty where nothing was kept for one."""
    if (found := entry.reverse) is None:
        return ""
    by = f" by move {found.move}" if found.state in ("begun", "reversed") else ""
    held = found.held_bytes
    wal = "" if held is None else f", WAL held on {entry.move.target}: {picture.size(held)}"
    until = f", until {picture.moment(found.until)}" if found.state == "open" else ""
    return f"reverse: {found.state}{by}{wal}{until}"


def change(
    ctx: Context,
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


def shown(topology: Topology, entry: Entry, width: int, *, timeline: bool) -> str:
    """Compose a move with its steps, its progress, and the cutover's sub-steps and result."""
    report = entry.move.report or {}
    steps = [(s.step, s.state, _ms(s.took_ms), s.error or "") for s in entry.steps]
    parts = [fit(HEADER, [row(entry, PARTS)], width), fit(STEPS, steps, width)]
    if timeline:
        parts.append(_sub_steps(topology, entry, width))
    elif spans := report.get("timeline"):
        parts.append(fit(("sub-step", "ms"), [(name, _ms(ms)) for name, ms in spans], width))
    given = entry.move.plan.get("reverses")
    lines = [
        copied(entry),
        f"method: {entry.move.method}",
        f"reverse of move {given['move']}" if given is not None else "",
        reverse(entry),
        *_rehearsed(report),
    ]
    for pooler, waited in report.get("pooler_waits_ms", {}).items():
        lines.append(f"longest wait at pooler {pooler}: {waited:.0f} ms")
    found = [paragraph(one_line(line), width) for line in (*lines, *_result(report)) if line]
    return "\n".join([*parts, *found])


def show_end(entry: Entry) -> None:
    """Print how a move ended: for how long clients waited, and what was compared."""
    report = entry.move.report or {}
    rehearsed = _rehearsed(report) if entry.state == "aborted" else ()
    for line in [*rehearsed] or _result(report):
        print_line(line)


def ending(entry: Entry) -> str:
    """Return the last line of a move: its state, and what comes next."""
    move = entry.move
    if entry.state == "aborted":
        return f"rehearsal {move.id} has ended: both nodes are as they were before it"
    if entry.state == "unconfirmed":
        return f"move {move.id} is unconfirmed: {_DOUBTS[move.proof]}"
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
_DOUBTS = {
    None: "no rows were compared",
    "forked": "rows could not be compared; the target had replayed all commits of the source. "
    "`shardctl prune` requires --accept-unconfirmed",
    "differs": "the copies differ, and `shardctl prune` keeps them; `shardctl moves show` lists "
    "the tables",
}


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
    for table in report.get("uncompared", ()):
        yield f"could not be compared: {table}"


def _rehearsed(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a move's report says of its rehearsal."""
    if (found := report.get("rehearsal")) is None:
        return
    counts = (plural(found["tables"], "table"), plural(found["rows"], "row"))
    size = picture.size(found["size_bytes"])
    yield f"rehearsed: {', '.join(counts)} ({size}) were equal on both nodes at {found['time']}"
    for table in found["differing"]:
        yield f"rehearsed: differs: {table}"
    yield (
        f"rehearsed: writers waited at most {found['writers_held_ms']:.0f} ms for its locks, "
        f"{found['waited_ms']:.0f} ms of that for open transactions"
    )
    predicted = found["predicted_pause_ms"]
    yield f"rehearsed: clients are predicted to wait {predicted:.0f} ms in the cutover"


def _sub_steps(topology: Topology, entry: Entry, width: int) -> str:
    """Draw the cutover's sub-steps beside their predictions."""
    from shardctl.moves import prediction

    found = prediction.sub_step_times(topology, entry.move)
    longest = max((one.elapsed_ms or 0.0 for one in found), default=0.0)
    rows = [
        (
            one.name,
            _CLIENTS[one.when],
            _ms(one.elapsed_ms),
            _ms(one.predicted_ms),
            picture.bar(one.elapsed_ms or 0.0, longest, width=_BAR),
        )
        for one in found
    ]
    return fit(("sub-step", "clients", "ms", "predicted", ""), rows, width)


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
