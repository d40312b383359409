"""A move as its record in a journal says it."""

from __future__ import annotations

from typing import Any

from shardctl.state.journal import Move, MoveState
from tests.fixtures.fleets.facts import NOW

ID = "5f3a9c1e"


def move(state: MoveState = MoveState.reserved, **given: Any) -> Move:
    """Give one of shards 2 and 3 from a to b that was changed now."""
    values: dict[str, Any] = {
        "id": ID, "revision": 1, "state": state, "method": "clone", "source": "a", "target": "b",
        "shards": (2, 3), "schemas": ("shard2", "shard3"),
        "retired": (f"shard2__retired_{ID}", f"shard3__retired_{ID}"),
        "plan": {"options": {"retain_s": 0}}, "who": "ann@ops1", "started": NOW, "changed": NOW,
    }  # fmt: skip
    values |= dict.fromkeys(("ended", "drained_at", "drained_to", "proof", "report"))
    return Move(**values | given)
