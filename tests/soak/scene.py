"""What faults need to know of an episode: the command, what it moves, and what clients may see."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.soak.fleet import POOLERS
from tests.soak.history import Outage
from tests.soak.windows import Window

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.soak.commands import Command
    from tests.soak.fleet import Fleet
    from tests.soak.observer import Observer

GRACE_S = 3.0
"""How long after a server is back clients may still get errors: poolers try again each second."""


@dataclass(slots=True)
class Notes:
    """What the whole soak collects beside the clients' operations."""

    windows: list[Window] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Commands that ended as none may."""
    disturbed: set[str] = field(default_factory=set)
    """Moves in which shardctl or a server was killed, stopped or cut off."""
    stale: list[Path] = field(default_factory=list)
    """Copies of the topology file from before each move."""


@dataclass(slots=True)
class Scene:
    """One episode while it goes on."""

    fleet: Fleet
    observer: Observer
    notes: Notes
    command: Command
    source: str
    target: str
    shards: tuple[int, ...]
    chance: random.Random
    over: threading.Event
    """Set when faults have to end."""
    read_retired: Callable[[], object]
    """Reads retired copies, before a command drops them."""
    cleanups: list[Callable[[], None]] = field(default_factory=list)
    """What is done when all servers run again."""
    extra: list[Command] = field(default_factory=list)
    """Commands of a second operator."""

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End faults at once where the episode is broken off."""
        try:
            yield
        except BaseException:
            self.over.set()
            raise

    def hold(self, seconds: float) -> None:
        """Let a fault last."""
        self.over.wait(seconds)

    def node(self) -> str:
        """Choose a node: mostly the source or the target, if the command has them."""
        owning = sorted(set(self.observer.owners().values()))
        own = [node for node in (self.source, self.target) if node]
        return self.chance.choice(own if own and self.chance.random() < 0.85 else owning)

    def pooler(self) -> str:
        return self.chance.choice(POOLERS)

    def shard(self) -> int:
        """Choose a shard: one that moves, if any does."""
        return self.chance.choice(self.shards or sorted(self.observer.owners()))

    def served_by(self, node: str) -> frozenset[int]:
        """Give the shards for which a node's outage matters."""
        owned = {shard for shard, owner in self.observer.owners().items() if owner == node}
        return frozenset(owned | set(self.shards if node in (self.source, self.target) else ()))

    def node_out(self, node: str, reason: str) -> Window:
        """Note that a node's shards may meet any error from now on."""
        window = Window(reason, time.monotonic(), shards=self.served_by(node))
        self.notes.windows.append(window)
        self.disturb()
        return window

    def pooler_out(self, pooler: str, reason: str) -> Window:
        """Note that a pooler's clients may meet any error from now on."""
        by = frozenset({pooler, f"{pooler} by nodes", "router"})
        window = Window(reason, time.monotonic(), by=by)
        self.notes.windows.append(window)
        return window

    def disturb(self) -> None:
        """Note that guards may have to end the moves that are open now."""
        self.notes.disturbed.update(self.observer.open_moves())

    def excuse(self, kind: str, name: str, begin: float, end: float) -> None:
        """Note when a pooler or its guards could not work."""
        self.notes.outages.append(Outage(kind, name, begin, end))  # type: ignore[arg-type]
