"""A rebalance that is carried out: moves that the journal knows as one group.

Each of them has the whole group in its plan, so whichever nodes can be read, any terminal can show
what is done and go on with the rest. Those that run at the same time have a process each (ADR 36):
a cutover counts milliseconds, so it shares no interpreter with the copy of another move, and
signals reach it as they reach a move of its own.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import wait
from typing import IO, TYPE_CHECKING, Any, cast

from shardctl import fanout
from shardctl.errors import Incomplete, Interrupted, Misused, Refused, ShardctlError, together
from shardctl.fleet import rebalance
from shardctl.moves import one_at_a_time, service
from shardctl.moves import plan as planning
from shardctl.moves.plan import MovePlan, Options
from shardctl.moves.sub_step import deferred
from shardctl.postgres.connection import connect
from shardctl.state import events, lock
from shardctl.topology import loader, ranges
from shardctl.topology.model import Node, NodeName, ShardId, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from shardctl.fanout import Progress
    from shardctl.fleet.rebalance import Plan
    from shardctl.moves.service import Notice
    from shardctl.state.ledger import Entry, Ledger

    Begin = Callable[[], AbstractContextManager["Work"]]


COMMAND = "rebalance"
_CHANGED = {"map_changed", "ownership_differs", "topology_changed"}
"""What a move is refused with before it begins, when map or file have changed just now."""
PAUSE, RESUME = "rebalance pause", "rebalance resume"
"""The commands of the events by which any terminal pauses a rebalance that runs in another one."""
_LAST = """
    SELECT command FROM shardctl.event WHERE command = ANY (%s) AND result = %s
    ORDER BY id DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What moves report to: progress, and messages."""

    progress: Progress
    notice: Notice


@dataclass(frozen=True, slots=True)
class Part:
    """One move of a group; `entry` is the newest in the journal that carries it out."""

    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    entry: Entry | None = None

    @property
    def state(self) -> str:
        """The state of its move as people see it; `waiting` before there is one."""
        return "waiting" if self.entry is None else self.entry.state

    @property
    def is_open(self) -> bool:
        """Whether its move is unfinished, or runs."""
        return self.entry is not None and self.entry.open

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "source": self.source,
            "target": self.target,
            "shards": list(self.shards),
            "move": self.entry.move.id if self.entry else None,
            "state": self.state,
        }

    def left(self, topology: Topology) -> list[ShardId]:
        """List the shards that are still on the source; raises plan_outdated for other nodes."""
        owners = topology.owners()
        away = [s for s in self.shards if owners.get(s) not in (self.source, self.target)]
        if away:
            where = ", ".join(sorted({str(owners.get(shard)) for shard in away}))
            raise rebalance.outdated(
                [f"shards {ranges.of(away)} are on {where}, and should be on {self.source}"]
            )
        return [shard for shard in self.shards if owners[shard] == self.source]


@dataclass(frozen=True, slots=True)
class Group:
    """Moves in their order, each from one node to another."""

    id: str
    parts: tuple[Part, ...]
    parallel: int = 1
    """How many of them may run at the same time."""

    @classmethod
    def of(cls, plan: Plan, parallel: int = 1) -> Group:
        """Begin to carry out a plan."""
        parts = (Part(move.source, move.target, move.shards) for move in plan.moves)
        return cls(planning.new_id(), tuple(parts), parallel)

    @classmethod
    def newest(cls, ledger: Ledger) -> Group:
        """Read the group that began last out of the journal; raises no_rebalance_yet."""
        given = next((g for one in ledger.entries if (g := _group(one))), None)
        if given is None:
            raise Misused(
                "no_rebalance_yet",
                "no rebalance has started yet",
                hint="run `shardctl rebalance apply` to start one",
            )
        own = [one for one in ledger.entries if _group(one).get("id") == given["id"]]
        parts = tuple(_part(own, *one) for one in given["moves"])
        return cls(given["id"], parts, given.get("parallel", 1))

    @property
    def open(self) -> list[Entry]:
        """The moves that are unfinished, or run."""
        return [part.entry for part in self.parts if part.entry is not None and part.entry.open]

    def left(self, topology: Topology) -> list[Part]:
        """List the moves that are not finished, the unfinished ones first; raises plan_outdated."""
        found = [p for p in self.parts if p.is_open or p.left(topology)]
        return sorted(found, key=lambda part: not part.is_open)

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {"group": self.id, "moves": [part.as_json() for part in self.parts]}

    def row(self, options: Options) -> Mapping[str, Any]:
        """Give what the journal keeps with each of its moves, whose own limit of WAL is settled."""
        moves = [[part.source, part.target, ranges.of(part.shards)] for part in self.parts]
        kept = {"id": self.id, "moves": moves, "parallel": self.parallel}
        return kept | {"max_wal_bytes": options.max_wal_bytes}


def _group(entry: Entry) -> Mapping[str, Any]:
    return entry.move.plan.get("group") or {}


def _part(entries: Iterable[Entry], source: str, target: str, text: str) -> Part:
    """Find the newest move of a part by its shards: two parts may have the same nodes."""
    shards = tuple(ShardId(n) for first, last in ranges.parse(text) for n in range(first, last + 1))
    of_it = (
        one
        for one in entries
        if (one.move.source, one.move.target) == (source, target)
        if {*shards}.issuperset(one.move.shards)
    )
    return Part(NodeName(source), NodeName(target), shards, next(of_it, None))


def run(topology: Topology, group: Group, options: Options, work: Work, begin: Begin) -> Group:
    """Carry out the moves of a group that are left; return how they ended.

    Up to `parallel` of them at a time, each in a process with what `begin` gives it, or one after
    the other. Raises what `carry_out` raises.
    """
    left, one = group.left(topology), partial(carry_out, topology.path, group, options=options)
    if group.parallel > 1:
        _carry_out_together(one, left, group.parallel, begin, work.notice)
    else:
        for part in left:
            one(part, work=work)
    return Group.newest(service.read(loader.load_trusted(topology.path)))


def carry_out(path: Path, group: Group, part: Part, options: Options, work: Work) -> None:
    """Carry out one move of a group, or finish it where it is unfinished.

    It is planned and checked now, by the file as other moves have left it. Raises plan_outdated,
    rebalance_paused, rebalance_stopped for a move that is not confirmed, and what a move raises.
    """
    topology = loader.load_trusted(path)
    if part.entry is not None and part.entry.open:
        move = part.entry.move.id
        service.resume(topology, part.entry, work.progress, work.notice, service.Given())
    elif part.left(topology):
        _require_unpaused(topology, group, part.source)
        move = _start(topology, group, part, options, work)
    else:
        return
    if service.read(topology).entry(move).state == "unconfirmed":
        raise Incomplete(
            "rebalance_stopped",
            f"move {move} is unconfirmed, so the rebalance ends here",
            hint=f"see `shardctl moves show {move}`, then run `shardctl rebalance resume`",
        )


def _start(topology: Topology, group: Group, part: Part, options: Options, work: Work) -> str:
    """Plan, check and carry out a move; again where another has changed the map before it began."""
    while True:
        topology, decided = _decided(loader.load_trusted(topology.path), group, part, options)
        number = 1 + [one.shards for one in group.parts].index(part.shards)
        work.notice(
            f"move {number} of {len(group.parts)}: from {part.source} to {part.target}, "
            f"shards: {len(decided.shards):,}"
        )
        try:
            service.start(topology, decided, work.progress, work.notice)
        except ShardctlError as error:
            if not {one.code for one in error.parts()} <= _CHANGED:
                raise
        else:
            return decided.id


def _decided(
    topology: Topology, group: Group, part: Part, options: Options
) -> tuple[Topology, MovePlan]:
    """Plan and check a move; return it with the topology that it was planned by."""

    def planned(now: Topology) -> tuple[Topology, MovePlan]:
        shards = part.left(now)
        if not shards:
            moved = ranges.of(part.shards)
            raise rebalance.outdated([f"another command has moved shards {moved}"])
        decided = service.plan(now, shards, part.target, options, method=planning.STREAM)
        decided = replace(decided, group=group.row(options))
        service.preflight(now, decided)
        lock.require_all_free(now, decided.locked, command=COMMAND)
        return now, decided

    return one_at_a_time.undisturbed(topology, planned)


def check_first(topology: Topology, group: Group, options: Options) -> None:
    """Refuse what would be refused before anything moves; changes nothing.

    Later moves are checked when their turn comes. Raises what `carry_out` raises for the first.
    """
    for part in group.left(topology)[:1]:
        if not part.is_open:
            _decided(topology, group, part, options)


def begin_again(topology: Topology, group: Group) -> Options:
    """Let a group that was paused or interrupted go on; return the options of its moves."""
    record(topology, group, RESUME)
    return options_of(group)


def options_of(group: Group) -> Options:
    """Return the options of the group's moves, as the journal has them."""
    last = next(part.entry for part in reversed(group.parts) if part.entry is not None)
    options = MovePlan.of_journal(last.move).options
    return replace(options, max_wal_bytes=_group(last).get("max_wal_bytes"))


def record(topology: Topology, group: Group, command: str) -> None:
    """Write an event on the sources of the moves that are left; raises NodeUnavailable.

    After PAUSE, whichever terminal runs the group stops before its next move.
    """

    def one(node: Node) -> None:
        purpose = lock.purpose(command)
        with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
            events.record(session, command, group.id)

    sources = {part.source for part in group.left(topology)}
    fanout.collect([topology.nodes[name] for name in sorted(sources)], one).every()


def _require_unpaused(topology: Topology, group: Group, name: NodeName) -> None:
    node, purpose = topology.nodes[name], lock.purpose(COMMAND)
    with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
        last = session.execute(_LAST, [[PAUSE, RESUME], group.id]).fetchone()
    if last is not None and last[0] == PAUSE:
        raise Incomplete(
            "rebalance_paused",
            f"rebalance {group.id} is paused: no other move begins",
            hint="run `shardctl rebalance resume` to carry out the rest",
        )


_POLL_S = 0.2
_PROGRAM = "from shardctl.fleet.group import run_part; run_part()"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST = "interrupted: no other move begins, and those that run are stopped, or finish"


def _carry_out_together(
    one: Callable[..., None], parts: list[Part], most: int, begin: Begin, notice: Notice
) -> None:
    """Carry out moves of a group, those without a common node at the same time.

    Of moves with a common node, the first comes first. When one fails or is interrupted, no other
    begins, and those that run go on to their ends, or are interrupted, too. Raises what they
    raise, and Interrupted.
    """
    waiting, errors = list(parts), list[ShardctlError]()
    passed_on = 0
    running: dict[Any, tuple[Part, subprocess.Popen[bytes]]] = {}
    with deferred(notice, _FIRST) as interrupt:
        while running or (waiting and not errors and not interrupt.asked):
            while not errors and not interrupt.asked and len(running) < most:
                busy = {node for part, _ in running.values() for node in (part.source, part.target)}
                if (part := _next_part(waiting, busy)) is None:
                    break
                waiting.remove(part)
                process = _started(begin, one, part)
                running[cast("IO[bytes]", process.stdout).fileno()] = part, process
            for ready in wait(running, _POLL_S):
                errors += _ended(*running.pop(ready))
            if interrupt.asked > passed_on:
                passed_on = interrupt.asked
                for _, process in running.values():
                    process.send_signal(signal.SIGINT)
    if errors:
        raise together(errors)
    if waiting:
        raise Interrupted("interrupted", hint="run `shardctl rebalance resume` to go on")


def _next_part(waiting: list[Part], busy: set[NodeName]) -> Part | None:
    """Choose the first move that has no node with one that runs, or that comes before it."""
    taken = set(busy)
    for part in waiting:
        if taken.isdisjoint({part.source, part.target}):
            return part
        taken |= {part.source, part.target}
    return None


def _started(begin: Begin, one: Callable[..., None], part: Part) -> subprocess.Popen[bytes]:
    """Let a process carry out a move; signals reach it when it is ready for them."""
    argv = [sys.executable, "-P", "-c", _PROGRAM]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        # Ctrl-C comes from the parent alone, and once.
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    # The end of its standard input shows the process that this one has ended.
    given = cast("IO[bytes]", process.stdin)
    with suppress(BrokenPipeError):  # it has died, as `_ended` finds
        given.write(pickle.dumps((begin, one, part)))
        given.flush()
    return process


def _ended(part: Part, process: subprocess.Popen[bytes]) -> list[ShardctlError]:
    """Wait until a process has ended, and return its errors, which it prints as JSON."""
    output, _ = process.communicate()
    if output:
        return [_raised(*one) for one in json.loads(output)]
    return [
        Incomplete(
            "rebalance_stopped",
            f"the process that moves shards from {part.source} to {part.target} ended without a "
            f"result (exit code {process.returncode})",
            hint="run `shardctl rebalance status`, then `shardctl rebalance resume`",
        )
    ]


def _raised(code: str, message: str, hint: str, exit_code: int) -> ShardctlError:
    error = Refused(code, message, hint=hint)
    error.exit_code = exit_code
    return error


def run_part() -> None:
    """Carry out one move in this process, and print its errors as JSON for its parent."""
    begin, one, part = pickle.load(sys.stdin.buffer)  # noqa: S301  # the parent has written it
    result = os.fdopen(os.dup(1), "w")  # no program that the move starts inherits it
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # It writes to its parent's terminal, which may stop what is not in the foreground.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    errors: list[ShardctlError] = []
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        with begin() as work:
            one(part, work=work)
    except ShardctlError as error:
        errors = error.parts()
    except KeyboardInterrupt:
        errors = [Interrupted(f"interrupted: the move from {part.source} to {part.target}")]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its standard input as it reads
    with suppress(BrokenPipeError), result:  # it may have been killed
        json.dump([(e.code, e.message, e.hint, e.exit_code) for e in errors], result)


def _end_with_parent() -> None:
    """Stop as by Ctrl-C when the parent has been killed."""
    os.read(sys.stdin.fileno(), 1)  # `sys.stdin` would be locked when this process ends
    os.kill(os.getpid(), signal.SIGINT)
