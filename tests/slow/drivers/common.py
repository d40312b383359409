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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOST, PORT, USER, DATABASE = sys.argv[1:5]
FENCED = {"42P01", "3F000", "42501"}
PATIENCE_S = 20.0
REST_S = 0.01


def run(execute: Callable[..., Any], *, mark: str, code: str) -> None:
    """Work with what runs a statement, its mark of a parameter, and its errors' SQLSTATE."""
    token, node = 0, "a"
    while not select.select([sys.stdin], [], [], 0)[0]:
        token += 1
        execute("shard2", f"INSERT INTO writes (token) VALUES ({mark}) RETURNING token", token)
        print(2, token, flush=True)  # noqa: T201  # what the test reads
        until = time.monotonic() + PATIENCE_S
        insert = f"INSERT INTO shard3.writes (token) VALUES ({mark}) RETURNING token"
        while True:
            try:
                execute(f"{DATABASE}_{node}", insert, token)
                break
            except Exception as error:
                if getattr(error, code, None) not in FENCED or time.monotonic() > until:
                    raise
            time.sleep(REST_S)
            owner = "SELECT node FROM shardctl.map WHERE shard = 3"
            [(node,)] = execute(f"{DATABASE}_{node}", owner)
        print(3, token, flush=True)  # noqa: T201  # same
        time.sleep(REST_S)
