"""Moves beside clients that log in anew for every request: how long these wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from shardctl.pgbouncer.console import Console
from tests.bench import moving
from tests.bench.measure import Row, limit, milliseconds, say

if TYPE_CHECKING:
    from tests.bench.measure import Scale
    from tests.bench.moving import Sandbox

PER_S = 300
RETRY_S = 15
"""PgBouncer's own `server_login_retry`; the sandbox's is shorter."""
MOVES = 20
LIMITS_MS = {8: 200, 3_000: 300, 8_000: 1_000}
"""By the number of aliases: no request may take longer."""

_SHARDS = 8
_WORDS = ["--connect", "--logins", str(PER_S)]


def logins(scale: Scale) -> list[Row]:
    """Move 4 of 8 shards twenty times, with 300 logins a second and 8, 3,000 and 8,000 aliases.

    Each request logs in through its shard's alias, does one transaction and logs out, and its
    time counts from when it was due. Half of the requests are for shards that move. The aliases
    beyond 8 are databases of the operator's own, which PgBouncer reads at a RELOAD as well, and
    tells of in SHOW DATABASES. The load of the same length without a move comes after, in the
    same fleet.
    """
    rows: list[Row] = []
    for aliases, most in LIMITS_MS.items():
        rows += _moves(scale.of(aliases, min(aliases, 40)), most, scale.of(MOVES, 2))
    return rows


def _moves(aliases: int, most_ms: float, moves: int) -> list[Row]:
    with moving.sandbox(_SHARDS, 2, 1, aliases=["shard"]) as fleet:
        _configure(fleet, aliases - _SHARDS)
        pauses: list[float] = []
        with fleet.load(words=_WORDS) as load:
            for number in range(moves):
                source, target = ("a", "c") if number % 2 == 0 else ("c", "a")
                say(f"  {aliases:,} aliases, move {number + 1} ({moving.busy()})")
                words = ("--from", source, "--all", "--to", target, "--retain", "0s")
                pauses.append(fleet.move(*words).pause)
                fleet.prune()
                fleet.remove(source)
            moved = load.end(0)
        fleet.settle()
        with fleet.load(words=_WORDS) as load:
            still = load.end(moved["elapsed_s"])
    return [
        limit(
            f"{moves} moves of 4 of {aliases:,} aliases, {PER_S} logins a second: longest request",
            moved["longest_ms"],
            most_ms,
            "ms",
            note=f"without a move: {still['longest_ms']:.0f} ms; {_reported(moved)}; "
            f"pauses {milliseconds(min(pauses))} to {milliseconds(max(pauses))}; {moving.busy()}",
        ),
        moving.flaws("logins", [moved]),
    ]


def _reported(found: dict[str, Any]) -> str:
    """Tell of a load how many of its requests were slow, by the seconds in which they ended."""
    longest = sorted((s["longest_ms"] or 0.0 for s in found["seconds"]), reverse=True)[:5]
    late = found["logins"]["late_ms"]
    return (
        f"{found['logins']['operations']:,} logins, started up to {late:.0f} ms late; "
        f"the slowest of the five worst seconds: {', '.join(f'{ms:.0f}' for ms in longest)} ms"
    )


def _configure(fleet: Sandbox, own: int) -> None:
    """Give the pooler PgBouncer's own `server_login_retry`, and databases of its operator's."""
    topology = fleet.topology()
    (pooler,) = topology.poolers.values()
    text = pooler.config.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^server_login_retry = .*$", f"server_login_retry = {RETRY_S}", text)
    port = fleet.node("b").port
    lines = "".join(f"own{n} = host=127.0.0.1 port={port} dbname=app\n" for n in range(own))
    pooler.config.write_text(f"[databases]\n{lines}{text}", encoding="utf-8")
    with Console(pooler, topology.database, purpose="bench") as console:
        console.reload()
        if console.config()["server_login_retry"] != str(RETRY_S):
            raise RuntimeError("the pooler did not take its server_login_retry")
        if len(console.databases()) < own:
            raise RuntimeError("the pooler did not take its operator's databases")
