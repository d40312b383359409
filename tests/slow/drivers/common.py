"""What the programs in Python share: writes through an alias of a shard and of a node.

Every program does the same, in its language: until its input ends, it inserts a token through the
alias `shard2`, and one into shard 3 through the alias of a node. Where shard 3 is fenced there, it
reads the map, and tries again at the node that the map gives. It prints a line for each token that
was acknowledged, `2 TOKEN` or `3 TOKEN`, and ends with the first error of another kind.
"""

from __future__ import annotations

import select
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

HOST, PORT, USER, DATABASE = sys.argv[1:5]
FENCED = {"42P01", "3F000", "42501"}
IN_SHARD = "INSERT INTO writes (token) VALUES ({})"
IN_NODE = "INSERT INTO shard3.writes (token) VALUES ({})"
OWNER = "SELECT node FROM shardctl.map WHERE shard = 3"
PATIENCE_S = 20.0
REST_S = 0.01


class Driver(Protocol):
    """What a program brings."""

    def insert(self, alias: str, statement: str, token: int) -> None:
        """Insert in a transaction of its own."""

    def owner(self, alias: str) -> str:
        """Read the owner of shard 3 from a node's map."""

    def code(self, error: Exception) -> str | None:
        """Give an error's SQLSTATE."""


def ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def run(driver: Driver, *, ended: Callable[[], bool] = ended) -> None:
    token, node = 0, "a"
    while not ended():
        token += 1
        driver.insert("shard2", IN_SHARD, token)
        print(2, token, flush=True)  # noqa: T201  # what the test reads
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                driver.insert(f"{DATABASE}_{node}", IN_NODE, token)
                break
            except Exception as error:
                if driver.code(error) not in FENCED or time.monotonic() > until:
                    raise
            time.sleep(REST_S)
            node = driver.owner(f"{DATABASE}_{node}")
        print(3, token, flush=True)  # noqa: T201  # same
        time.sleep(REST_S)
