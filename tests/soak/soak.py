"""Runs episodes on a fleet beside clients, until the time is over, and gives the history."""

from __future__ import annotations

import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.soak import allowed, ending, findings
from tests.soak.clients import Context
from tests.soak.clients_special import all_of
from tests.soak.commands import BUG, PRUNE, Choice, Command, Kept, kept
from tests.soak.ending import Broken
from tests.soak.faults import FAULTS
from tests.soak.fleet import MAX_PAUSE_S, NODES
from tests.soak.history import Attempt, History
from tests.soak.measured import Measured
from tests.soak.observer import Observer
from tests.soak.recorder import Recorder
from tests.soak.scene import Notes, Scene
from tests.soak.schedule import Episode, episodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.soak.fleet import Fleet
    from tests.soak.history import Copy
    from tests.soak.schedule import Fault

PAUSE_LIMIT_S = MAX_PAUSE_S + 1.0 + 5.0
"""A guard fires a second after the budget; the rest is its own time on a machine that is busy."""

_COMMAND_S = 120.0
_JOIN_S = 90.0
_NOTICED_S, _LOOK_S = 1.0, 0.1
"""Until the observer has seen a pause."""
_LEARN_S = 1.0
"""Until clients that use the map have the newest one."""
_COMPLETED = {"init", "migrate", "pgbouncer apply", "finish", "doctor"}
"""What is run again when it has failed; a move is complete when it is over."""
_READ_BEFORE = {"prune", "clone", "reverse"}
"""What may drop or change retired copies."""
_DOCTOR = ("moves", "doctor", "--yes")


@dataclass(frozen=True, slots=True)
class Event:
    """What an episode did, as its file has it."""

    number: int
    kind: str
    what: str
    began: float
    ended: float
    result: str


class Soak:
    """All of one run; the history is whole after `run`, and judged by nobody."""

    def __init__(self, fleet: Fleet, seed: int, seconds: float, directory: Path) -> None:
        self.fleet = fleet
        self.seed = seed
        self.seconds = seconds
        self.history = History()
        self.notes = Notes()
        self.events: list[Event] = []
        self.commands: list[tuple[str, int]] = []
        """Every command that ended, with the most memory that it had, in kB."""
        self.broken = ""
        self.recorder = Recorder(directory)
        self.before = findings.beside(fleet)
        self.observer = Observer(fleet)
        self.copies = findings.Copies(fleet, self.observer.closed)
        self.measured = Measured(fleet)
        topology = self.fleet.topology()
        poolers = {str(one.name): one.port for one in topology.poolers.values()}
        self.context = Context(
            self.recorder, self.fleet.ports(), poolers, self.observer.owners, self.seed
        )

    def run(self) -> None:
        """Run episodes beside clients, and read afterwards what is there."""
        clients = all_of(self.context, self.fleet.path)
        for client in clients:
            client.start()
        try:
            self._episodes()
        finally:
            self.context.stop.set()
            for client in clients:
                client.join(_JOIN_S)
            self.measured.stop()
        stuck = [client.name for client in clients if client.is_alive()]
        self.notes.wrong += [f"client {name} waits for ever" for name in stuck]
        if crashes := [client.crash for client in clients if client.crash is not None]:
            raise crashes[0]
        self._conclude()
        self.observer.stop()
        self.recorder.close()

    def _episodes(self) -> None:
        """Run episodes until the time is over, or the fleet cannot go on."""
        deadline = time.monotonic() + self.seconds
        for episode in episodes(self.seed):
            if time.monotonic() > deadline:
                return
            try:
                self._episode(episode)
            except Broken as broken:
                self.broken = str(broken)
                now = time.monotonic()
                self._event(episode.number, "broken", "", began=now, result=self.broken)
                return

    def _episode(self, episode: Episode) -> None:
        ran = [node for node in NODES if self.fleet.runs(node)]
        self._keep_topology()
        if episode.operation in _READ_BEFORE:
            self.copies.read(live=False)
        owners = self.observer.owners()
        listed = self._kept() if episode.operation in {"reverse", "finish"} else []
        choice = Choice(NODES, owners, self.fleet.migrations, episode, listed)
        scenes: list[Scene] = []
        began = time.monotonic()
        try:
            for number, words in enumerate(choice.commands()):
                # Faults are of the first command; the second of a pair ends what that has begun.
                faults = episode.faults if number == 0 else ()
                scenes.append(self._command(episode, choice, words, faults))
            self._settle(episode, ran, scenes)
        finally:
            until = time.monotonic() + _LEARN_S
            windows = allowed.of_operation(episode, choice.shards, began, until)
            self.notes.windows += windows

    def _command(
        self, episode: Episode, choice: Choice, words: list[str], faults: tuple[Fault, ...]
    ) -> Scene:
        """Run a command to its end, with its faults."""
        command = Command(self.fleet, words)
        scene = Scene(
            fleet=self.fleet,
            observer=self.observer,
            notes=self.notes,
            command=command,
            source=choice.source,
            target=choice.target,
            shards=choice.shards,
            chance=random.Random(episode.share),  # noqa: S311  # no secret
            over=threading.Event(),
            read_retired=lambda: self.copies.read(live=False),
        )
        with ThreadPoolExecutor(max(1, len(faults))) as pool, scene.ending():
            waiting = [pool.submit(self._fault, episode, scene, fault) for fault in faults]
            code = command.wait(_COMMAND_S)
            if code is None:
                self.notes.wrong.append(f"{' '.join(words)}: still runs after {_COMMAND_S:.0f} s")
                command.close()
            for done in waiting:
                done.result()
        self._took(episode, command, faulted=bool(faults))
        for one in scene.extra:
            self._took(episode, one, faulted=True, kind="second")
        return scene

    def _fault(self, episode: Episode, scene: Scene, fault: Fault) -> None:
        """Wait for a fault's moment, and let it happen."""
        began = time.monotonic()
        if not scene.command.wait_step(fault.step):
            result = f"step {fault.step} was not reached"
        else:
            scene.hold(fault.delay_s)
            began = time.monotonic()
            try:
                result = FAULTS[fault.kind](scene, fault)
            except Exception as error:  # noqa: BLE001  # it is told, and the run goes on
                result = f"could not be done: {error!r}"
        what = f"{fault.kind} in {fault.step or '-'}"
        self._event(episode.number, "fault", what, began=began, result=result)

    def _leave_to_guards(self) -> None:
        """Wait, like an operator who comes late, until the guards have ended what they can."""
        until = time.monotonic() + PAUSE_LIMIT_S + _NOTICED_S
        noticed = time.monotonic() + _NOTICED_S
        while time.monotonic() < until:
            if time.monotonic() > noticed and not self.observer.is_held():
                return
            time.sleep(_LOOK_S)

    def _settle(self, episode: Episode, ran: list[str], scenes: list[Scene]) -> None:
        """Let everything run, end what is unfinished, and complete what is incomplete."""
        if episode.late and self.observer.open_moves():
            self._leave_to_guards()
        self.context.rest.set()
        attempts: list[Attempt] = []
        after: list[Command] = []
        try:
            ending.start_all(self.fleet, ran)
            ending.end_moves(self.fleet, episode.ending, attempts, after)
            for scene in scenes:
                for cleanup in scene.cleanups:
                    cleanup()
            todo = self._incomplete(episode, scenes)
            after.extend(self._complete(episode, words) for words in todo)
        finally:
            self.history.attempts += attempts
            for command in after:
                self._took(episode, command, faulted=False, kind="ending")
            for attempt in attempts:
                self.recorder.event(attempt)
            self.context.rest.clear()

    def _incomplete(self, episode: Episode, scenes: list[Scene]) -> Iterator[Sequence[str]]:
        """Give the commands that complete what the episode has left."""
        ran = [command for scene in scenes for command in (scene.command, *scene.extra)]
        failed = any(scene.command.process.returncode for scene in scenes)
        if failed and episode.operation in {"read-only", "migrate"}:
            yield scenes[-1].command.words
        if (failed and episode.operation in _COMPLETED) or any(one.extra for one in scenes):
            yield ("init", "--yes")
        if (failed and episode.operation in {"finish", "doctor"}) or any(map(_is_sent, ran)):
            yield _DOCTOR

    def _kept(self) -> list[Kept]:
        """List the moves that can be reversed or finished."""
        command = Command(self.fleet, ["moves", "list", "-o", "json"])
        code = command.wait(_COMMAND_S)
        found = kept(command.output()) if code == 0 else []
        if code != 0:
            self.notes.wrong.append(f"moves list: {code}: {command.said()[-600:]}")
        command.close()
        return found

    def _complete(self, episode: Episode, words: Sequence[str]) -> Command:
        """Run a command that has to end well: nothing is in its way any more."""
        command = Command(self.fleet, words)
        code = command.wait(_COMMAND_S)
        if code != 0:
            said = command.said()[-600:]
            self.notes.wrong.append(f"episode {episode.number}: {' '.join(words)}: {code}: {said}")
        return command

    def _conclude(self) -> None:
        """Prune what may be pruned, and read what is there."""
        history = self.history
        if not self.broken:
            self.copies.read(live=False)
            finished = [("moves", "finish", one.move, "--yes") for one in self._kept()]
            for words in (*finished, PRUNE, ("verify", "-o", "json")):
                command = Command(self.fleet, words)
                code = command.wait(_COMMAND_S)
                if words[0] == "verify":
                    history.left += findings.verified(command.output())
                elif code != 0:
                    told = f"{' '.join(words)}: {code}: {command.said()[-600:]}"
                    self.notes.wrong.append(told)
                command.close()
        states = ending.states(self.fleet)
        history.open_moves = frozenset(m for m, state in states.items() if state not in ending.OVER)
        history.ops = self.recorder.ops
        history.eras = self.observer.eras()
        history.copies = [copy for copy in self.copies.read(live=True) if not self._made(copy)]
        history.maps = findings.maps(self.fleet)
        history.pauses = self.observer.all_pauses()
        history.pause_limit_s = PAUSE_LIMIT_S
        history.outages = self.notes.outages
        history.left += [*findings.left(self.fleet, self.before), *findings.paused(self.fleet)]
        self.notes.windows += allowed.of_clones(self.observer.moves, self.notes.disturbed)
        history.wrong = list(self.notes.wrong)

    def _made(self, copy: Copy) -> bool:
        """Tell whether a move that is not over makes this copy."""
        moves = self.observer.open_moves().values()
        made = any(copy.node == one.target and copy.shard in one.shards for one in moves)
        return made and self.observer.owners()[copy.shard] != copy.node

    def _took(
        self, episode: Episode, command: Command, *, faulted: bool, kind: str = "operation"
    ) -> None:
        """Take down how a command ended."""
        code, words = command.process.returncode, " ".join(command.words)
        said = command.said()
        if code == BUG or "Traceback" in said:
            self.notes.wrong.append(f"episode {episode.number}: {words}: {code}: {said[-1500:]}")
        told = f"{code}" if not code else f"{code}: {said[-400:]}"
        result = told if faulted or kind == "ending" else f"{told}, no fault"
        self.commands.append((words, command.peak_kb))
        began, ended = command.began, command.ended
        self._event(episode.number, kind, words, began=began, result=result, ended=ended)
        command.close()

    def _event(
        self,
        number: int,
        kind: str,
        what: str,
        *,
        began: float,
        result: str,
        ended: float | None = None,
    ) -> None:
        """Take down something that has ended, now if nothing else is given."""
        start = self.recorder.began
        first, last = (round(at - start, 3) for at in (began, ended or time.monotonic()))
        event = Event(number, kind, what, first, last, result)
        self.events.append(event)
        self.recorder.event(event)

    def _keep_topology(self) -> None:
        """Keep the topology file as it is before an operation."""
        number = len(self.notes.stale)
        copy = self.fleet.directory / f"stale-{number}.yaml"
        if (
            not self.notes.stale
            or self.notes.stale[-1].read_bytes() != self.fleet.path.read_bytes()
        ):
            shutil.copy(self.fleet.path, copy)
            self.notes.stale.append(copy)


def _is_sent(command: Command) -> bool:
    """Tell whether a command has sent its operator to `moves doctor`."""
    return any("`shardctl moves doctor`" in line for line in command.lines)
