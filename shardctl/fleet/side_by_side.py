"""Moves of a group at the same time, each in a process of its own (ADR 36).

A cutover counts milliseconds: it shares no interpreter with the copy of another move, and signals
reach it as they reach a move of its own.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, TYPE_CHECKING, Any, cast

from shardctl.errors import Incomplete, Interrupted, Refused, ShardctlError, together
from shardctl.fleet import group as groups
from shardctl.moves.sub_step import deferred

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardctl.fanout import Progress
    from shardctl.fleet.group import Group, Part, Work
    from shardctl.moves.plan import Options
    from shardctl.moves.step import Step

_POLL_S = 0.2
_PROGRAM = "from shardctl.fleet.side_by_side import main; main()"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST = "interrupted: no other move begins, and those that run are stopped"
_AGAIN = "interrupted again: the moves that run are stopped, or finish their cutovers"


@dataclass(frozen=True, slots=True)
class Order:
    """What all processes are given: the topology file, the group, and its options.

    Each of them calls `begin` first.
    """

    path: Path
    group: Group
    options: Options
    begin: Callable[[], None]


def carry_out(order: Order, parts: list[Part], work: Work) -> None:
    """Carry out moves of a group, those without a common node at the same time.

    Of moves with a common node, the first comes first. When one fails or is interrupted, no other
    begins, and those that run go on to their ends, or are interrupted, too. Raises what they
    raise, and Interrupted.
    """
    waiting, running = list(parts), list[_Running]()
    errors: list[ShardctlError] = []
    passed_on = 0
    with deferred(work.notice, _FIRST, _AGAIN) as interrupt:
        while running or (waiting and not errors and not interrupt.asked):
            while not errors and not interrupt.asked and len(running) < order.group.parallel:
                busy = {node for one in running for node in one.nodes}
                if (part := _next(waiting, busy)) is None:
                    break
                waiting.remove(part)
                running.append(_Running.start(order, part))
            for ready in wait([one.pipe for one in running], _POLL_S):
                [one] = [one for one in running if one.pipe is ready]
                if one.is_over(work):
                    running.remove(one)
                    errors += one.errors
            if interrupt.asked > passed_on:
                passed_on = interrupt.asked
                for one in running:
                    one.interrupt()
    if errors:
        raise together(errors)
    if waiting:
        raise Interrupted("interrupted", hint="run `shardctl rebalance resume` to go on")


def _next(waiting: list[Part], busy: set[str]) -> Part | None:
    """Choose the first move that has no node with one that runs, or that comes before it."""
    taken = set(busy)
    for part in waiting:
        if taken.isdisjoint({part.source, part.target}):
            return part
        taken |= {part.source, part.target}
    return None


@dataclass(slots=True)
class _Running:
    """A move that another process carries out."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    nodes: tuple[str, str]
    errors: list[ShardctlError] = field(default_factory=list)
    ended: bool = False

    @classmethod
    def start(cls, order: Order, part: Part) -> _Running:
        """Start a process, which signals reach when it is ready for them."""
        ours, theirs = Pipe(duplex=False)
        argv = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())]
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            # Ctrl-C comes from the parent alone, and once.
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], process_group=0
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        one = cls(process, ours, (part.source, part.target))
        with suppress(BrokenPipeError):  # it has died, as `is_over` finds
            one.stdin.write(pickle.dumps((order, part)))
            one.stdin.flush()
        return one

    @property
    def stdin(self) -> IO[bytes]:
        """What tells the process by its end that the parent has ended."""
        return cast("IO[bytes]", self.process.stdin)

    def is_over(self, work: Work) -> bool:
        """Show what it reports next; return whether it has ended, with its `errors`."""
        try:
            what, given, named = self.pipe.recv()
        except EOFError:
            self.process.wait()
            with suppress(BrokenPipeError):
                self.stdin.close()
            self.pipe.close()
            if not self.ended:
                self.errors.append(_died(self))
            return True
        if what == "notice":
            work.notice(*given)
        elif what == "ended":
            self.ended = True
            self.errors += [_raised(*one) for one in given]
        else:
            getattr(work.progress, what)(*given, **named)
        return False

    def interrupt(self) -> None:
        """Pass Ctrl-C on."""
        self.process.send_signal(signal.SIGINT)


def _died(one: _Running) -> ShardctlError:
    return Incomplete(
        "rebalance_stopped",
        f"the process that moves shards from {' to '.join(one.nodes)} ended without a result "
        f"(exit code {one.process.returncode})",
        hint="run `shardctl rebalance status`, then `shardctl rebalance resume`",
    )


def _raised(code: str, message: str, hint: str, exit_code: int) -> ShardctlError:
    error = Refused(code, message, hint=hint)
    error.exit_code = exit_code
    return error


def main() -> None:
    """Carry out one move in this process, which has no terminal: its parent shows what it does."""
    order, part = pickle.load(sys.stdin.buffer)  # noqa: S301  # the parent has written it
    os.set_inheritable(int(sys.argv[1]), False)
    relay = _Relay(Connection(int(sys.argv[1]), readable=False))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    work = groups.Work(cast("Progress", relay), relay.on_step, partial(relay.pass_on, "notice"))
    errors: list[ShardctlError] = []
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        order.begin()
        groups.carry_out(order.path, order.group, part, order.options, work)
    except ShardctlError as error:
        errors = error.parts()
    except KeyboardInterrupt:
        errors = [Interrupted(f"interrupted: the move from {part.source} to {part.target}")]
    relay.pass_on("ended", *((one.code, one.message, one.hint, one.exit_code) for one in errors))
    relay.close()


def _end_with_parent() -> None:
    """Stop as by Ctrl-C when the parent has been killed."""
    os.read(sys.stdin.fileno(), 1)  # `sys.stdin` would be locked when this process ends
    os.kill(os.getpid(), signal.SIGINT)


class _Relay:
    """Sends messages and progress to the parent, and never waits for it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._queue: queue.SimpleQueue[tuple[str, Any, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Pass on what the parent's progress is to show."""
        return partial(self.pass_on, name)

    def pass_on(self, what: str, *given: Any, **named: Any) -> None:
        """Send something, behind all that was sent before."""
        self._queue.put((what, given, named))

    def on_step(self, move: str) -> Callable[[Step], None]:
        """Return the callback that shows each step of a move as it begins."""
        return lambda step: self.pass_on("notice", f"move {move}: {step.name}: {step.sentence}")

    def close(self) -> None:
        """Wait until all is sent."""
        self._queue.put(None)
        self._thread.join()

    def _send(self) -> None:
        while (message := self._queue.get()) is not None:
            try:
                self._pipe.send(message)
            except OSError:  # the parent has ended
                return
