"""What is done and what goes wrong, made up from a seed: the same seed gives the same schedule.

How the parts interleave is the machine's affair, and differs from run to run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

SUBSTEPS = 30
"""Sub-steps of a move at which a process may stop itself; there are fewer of most."""
_ACTS = {
    "move": 9, "beside": 5, "rebalance": 2, "clone": 4, "reverse": 3,
    "prune": 1, "migrate": 1, "read-only": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """One command, and the faults during it."""

    act: str
    at: tuple[int, str] | None
    """Before which sub-step the command stops itself, and by which signal."""
    faults: tuple[tuple[float, str], ...]
    """When, as a share of the time that the command usually takes, and which."""
    ends: str
    """How an unfinished move is ended, if it can be: by `resume` or by `abort`."""
    seed: int
    """For the choices within: which shards, where to."""


def rounds(seed: int) -> Iterator[Round]:
    """Make up rounds without end; each fault comes once before any comes twice."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    names: list[str] = []
    stops = 0
    while True:
        faults = []
        for _ in range(chance.choice([0, 2, 3, 3, 4])):
            names = names or chance.sample(list(FAULTS), len(FAULTS))
            faults.append((chance.random(), names.pop()))
        at = None
        if chance.random() < 0.4:
            stops += 1
            at = 1 + stops % SUBSTEPS, chance.choice(["SIGKILL", "SIGKILL", "SIGSTOP"])
        yield Round(
            act=chance.choices(list(_ACTS), list(_ACTS.values()))[0],
            at=at,
            faults=tuple(sorted(faults)),
            ends=chance.choice(["resume", "resume", "abort"]),
            seed=chance.randrange(2**32),
        )


def shards_to_move(
    owners: Sequence[str], nodes: Iterable[str], chance: random.Random
) -> tuple[str, str, list[int]]:
    """Choose source, target and one to three shards: the fuller a node, the likelier it gives."""
    source = owners[chance.randrange(len(owners))]
    mine = [shard for shard, owner in enumerate(owners) if owner == source]
    target = chance.choice(sorted(set(nodes) - {source}))
    return source, target, sorted(chance.sample(mine, min(len(mine), chance.choice([1, 2, 3]))))
