"""Runs shardctl as an operator does, follows its log, and chooses what it is to do."""

from __future__ import annotations

import json
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.soak.clients_special import UNMOVED
from tests.soak.schedule import FINISH_REVERSE, KEEP_REVERSE, REVERSIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.soak.fleet import Fleet
    from tests.soak.schedule import Episode

PRUNE = ("prune", "--yes", "--now", "--accept-unconfirmed")
BUG = 70
_STEP = re.compile(r"move (\w+): step ([\w-]+): running")
_PAUSING = re.compile(r'pooler \w+: PAUSE "')
_ERROR = ("shardctl: ", "Traceback ")
_LINES = 60
_STREAM = ("--method", "stream")
_CLONE = ("--method", "clone", "--handover", "promote")
_CLONE_BY_STREAM = ("--method", "clone", "--handover", "stream")


class Command:
    """A process of shardctl; its steps are known as soon as they begin."""

    def __init__(self, fleet: Fleet, words: Sequence[str], *, topology: Path | None = None) -> None:
        self.words = tuple(words)
        self.began = time.monotonic()
        self.ended: float | None = None
        self.peak_kb = 0
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # until `close`
        self.process = subprocess.Popen(
            fleet.command(*words, topology=topology),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.PIPE,
            env=fleet.environment,
            start_new_session=True,
        )
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._steps: dict[str, float] = {}
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_step(self, step: str) -> bool:
        """Wait until a step begins, or '' at once; tell whether it did before the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: not step or step in self._steps or self.ended is not None
            )
            return not step or step in self._steps

    def wait(self, seconds: float) -> int | None:
        """Wait for its end and give the exit code; None if it goes on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                code = self.process.wait(0.1)
            except subprocess.TimeoutExpired:
                self.measure()
                continue
            # Programs that a killed shardctl has started may keep its standard error open.
            self._reader.join(1)
            self._end()
            return code
        return None

    def measure(self) -> None:
        """Take down the most memory that it had until now."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            self.peak_kb = max(self.peak_kb, int(found[1]))

    def said(self) -> str:
        """Give the error that it ended with, or the last lines of a traceback."""
        lines = list(self.lines)
        first = next((n for n, one in enumerate(lines) if one.startswith(_ERROR)), len(lines))
        return "\n".join(lines[first:])

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close(self) -> None:
        """End it, whatever it does."""
        if self.running:
            self.process.kill()
        self.process.wait()
        self._end()
        self._output.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip()
                self.lines.append(text)
                if step := _step(text):
                    with self._changed:
                        self._steps[step] = time.monotonic()
                        self._changed.notify_all()
        self.process.wait()
        self._end()

    def _end(self) -> None:
        with self._changed:
            self.ended = self.ended or time.monotonic()
            self._changed.notify_all()


def _step(line: str) -> str:
    """Give the step that begins with a line of the log, '' where none does."""
    if found := _STEP.search(line):
        return found[2]
    return "pause" if _PAUSING.search(line) else ""


@dataclass(frozen=True, slots=True)
class Kept:
    """A move that can be reversed or finished."""

    move: str
    source: str
    target: str
    shards: tuple[int, ...]
    can: tuple[str, ...]


def kept(listed: str) -> list[Kept]:
    """Read the moves that can be reversed or finished, the newest first, from `moves list`."""
    return [
        Kept(one["id"], one["source"], one["target"], tuple(one["shards"]), tuple(one["can"]))
        for one in json.loads(listed)["moves"]
        if {"reverse", "finish"} & {*one["can"]}
    ]


class Choice:
    """Chooses what a command of an episode does, of what is there at that moment."""

    def __init__(
        self,
        nodes: Sequence[str],
        owners: Mapping[int, str],
        migrations: Path,
        episode: Episode,
        kept: Sequence[Kept] = (),
    ) -> None:
        self._nodes = nodes
        self._migrations = migrations
        self._episode = episode
        self._kept = kept
        self._chance = random.Random(episode.pick)  # noqa: S311  # no secret
        self._owned: dict[str, list[int]] = defaultdict(list)
        for shard, node in owners.items():
            self._owned[node].append(shard)
        self.source = self.target = ""
        self.shards: tuple[int, ...] = ()

    def commands(self) -> list[list[str]]:
        """Give the commands of the episode, one after the other."""
        return _COMMANDS[self._episode.operation](self)

    def stream(self, words: Sequence[str] = ()) -> list[list[str]]:
        if len(self._owned) == 1:
            return self.clone()
        sources = [node for node in sorted(self._owned) if self._movable(node)]
        self.source = self._chance.choice(sources)
        self.target = self._chance.choice([n for n in sorted(self._owned) if n != self.source])
        movable = self._movable(self.source)
        return self._move(_STREAM, movable, 1 + int(self._episode.share * 4), words)

    def clone(self) -> list[list[str]]:
        """Clone the fullest node onto an empty one; where none is, empty the one with least."""
        empty = [node for node in self._nodes if node not in self._owned]
        if empty:
            self.target = self._chance.choice(empty)
            self.source = max(sorted(self._owned), key=lambda node: len(self._movable(node)))
            movable = self._movable(self.source)
            way = _CLONE_BY_STREAM if self._episode.operation in REVERSIBLE else _CLONE
            return self._move(way, movable, max(1, int(len(movable) * self._episode.share)))
        drained = [node for node in self._owned if UNMOVED not in self._owned[node]]
        self.source = min(sorted(drained), key=lambda node: len(self._owned[node]))
        self.target = self._chance.choice([n for n in sorted(self._owned) if n != self.source])
        return self._move(_STREAM, self._movable(self.source), len(self._owned[self.source]))

    def reverse(self) -> list[list[str]]:
        """Give back what an earlier move has moved; where none can, make one that can."""
        found = [one for one in self._kept if "reverse" in one.can]
        if not found:
            return self.stream(KEEP_REVERSE)
        one = self._chance.choice(found)
        self.source, self.target, self.shards = one.target, one.source, one.shards
        return [["moves", "reverse", one.move, "--yes", *self._episode.words]]

    def finish(self) -> list[list[str]]:
        found = [one.move for one in self._kept if "finish" in one.can]
        return [["moves", "finish", self._chance.choice(found), "--yes"]] if found else []

    def read_only(self) -> list[list[str]]:
        self.source = self._chance.choice(sorted(self._owned))
        movable = self._movable(self.source)
        self.shards = tuple(sorted(self._chance.sample(movable, min(2, len(movable)))))
        named = ",".join(map(str, self.shards))
        return [["read-only", one, named, "--yes"] for one in ("on", "off")] if named else []

    def migrate(self) -> list[list[str]]:
        """Add a column to all tables of the clients, or drop it again by the next migration."""
        number = len(list(self._migrations.iterdir()))
        change = "ADD COLUMN extra integer" if number % 2 else "DROP COLUMN extra"
        file = self._migrations / f"{number + 1:04d}_extra.sql"
        file.write_text(f"-- squawk-ignore ban-drop-column\nALTER TABLE writes {change};\n")
        return [["migrate", "--yes", FINISH_REVERSE]]

    def repack(self) -> list[list[str]]:
        # Where a client alters its table, PostgreSQL answers one of both with XX000.
        self.source = self._chance.choice(
            [one for one in sorted(self._owned) if self._movable(one)]
        )
        shard = self._chance.choice(self._movable(self.source))
        options = ["--min-bloat", "0", "--recent", "1s", "--wait-timeout", "3s"]
        return [["repack", str(shard), "--yes", *options]]

    def _movable(self, node: str) -> list[int]:
        return [shard for shard in self._owned[node] if shard != UNMOVED]

    def _move(
        self, way: Sequence[str], movable: list[int], count: int, words: Sequence[str] = ()
    ) -> list[list[str]]:
        chosen = self._chance.sample(movable, min(count, len(movable)))
        self.shards = tuple(sorted(chosen))
        named = ",".join(map(str, self.shards))
        given = [*self._episode.words, *words]
        if "stream" in way:
            given = [word for word in given if word != "--read-only"]
            given += [] if KEEP_REVERSE[0] in given else [KEEP_REVERSE[0], "0"]
        else:
            given = [word for word in given if word not in KEEP_REVERSE]
        return [["move-shards", named, "--to", self.target, *way, "--yes", *given]]


_COMMANDS: Mapping[str, Callable[[Choice], list[list[str]]]] = {
    "stream": Choice.stream,
    "clone": Choice.clone,
    "clone by stream": Choice.clone,
    "reverse": Choice.reverse,
    "finish": Choice.finish,
    "doctor": lambda _: [["moves", "doctor", "--yes"]],
    "read-only": Choice.read_only,
    "prune": lambda _: [[*PRUNE]],
    "migrate": Choice.migrate,
    "pgbouncer apply": lambda _: [["pgbouncer", "apply", "--yes"]],
    "verify": lambda _: [["verify"]],
    "init": lambda _: [["init", "--yes"]],
    "repack": Choice.repack,
}
