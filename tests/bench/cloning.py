"""Moves of much data, and many moves: what they take beside PostgreSQL's own, and leave."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from shardctl.sandbox import servers
from tests.bench import fleet as fleets
from tests.bench import moving
from tests.bench.measure import Row, compare, limit, say, seconds, versus
from tests.bench.stream_moves import fill
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from pathlib import Path

    from tests.bench.measure import Scale
    from tests.bench.moving import Moved, Sandbox

MEGABYTES = 150

_FREE = 15 << 30
"""Bytes of disk without which the full run is not begun: three clones, the source, a copy."""
_EACH = 4
"""Shards that a move takes."""
_SESSIONS = 2
"""Sessions a node over which `confirm` sums up tables."""


def clone(scale: Scale) -> list[Row]:
    """Move 4 shards of a node of 2 GB with 12, to a new node each time.

    From the begin of `reserve` to the end of the cutover, by the journal, against
    pg_basebackup with the same options and the start of a standby of what it copied, timed from
    outside. Both write to the same disk; before each side servers and kernel write out what is
    dirty. `confirm` against the same sums asked for by hand, in as many sessions, right after:
    the tables are in memory then for both.
    """
    rounds = scale.of(3, 1)
    moves: list[Moved] = []
    by_hand: list[float] = []
    with moving.sandbox(_EACH * rounds, 1, rounds) as fleet:
        free = shutil.disk_usage(fleet.directory).free
        if free < scale.of(_FREE, 0):
            raise RuntimeError(f"{fleet.directory}: only {free >> 30} GB are free")
        say(f"  filling ({moving.busy()})")
        fill(fleet, scale.of(165_000, 500), sorted(fleet.topology().owners()))
        with fleet.connect("a") as connection:
            connection.execute("VACUUM (FREEZE, ANALYZE)")
            [(size,)] = connection.execute("SELECT sum(pg_database_size(oid)) FROM pg_database")

        def ours() -> float:
            fleet.settle()
            done = len(moves)
            first, target = done * _EACH, list(fleet.topology().nodes)[1 + done]
            say(f"  move {done + 1} to {target} ({moving.busy()})")
            moves.append(fleet.move(f"{first}-{first + _EACH - 1}", "--to", target))
            schemas = [f"shard{shard}" for shard in range(first, first + _EACH)]
            by_hand.append(
                moving.sum_by_hand(fleet, moves[-1], "a", target, schemas, sessions=_SESSIONS)
            )
            began = moves[-1].began
            return began["cutover"] - began["reserve"] + moves[-1].steps["cutover"]

        def reference() -> float:
            fleet.settle()
            return _copy(fleet)

        name = f"move from a node of {int(size) / 1e9:.1f} GB: reserve to cutover"
        sides, against = {"ours": ours, "copy": reference}, ("pg_basebackup + start", 1.2)
        rows = versus(name, sides, rounds, {"copy": against}, seconds, note=moving.busy())
    peak = max(one.peak_kb for one in moves) / 1024
    steps = (
        f"{name} {seconds(statistics.median(one.steps[name] for one in moves))}"
        for name in ("clone", "follow", "cutover")
    )
    return [
        *rows,
        compare(
            "  confirm",
            [one.steps["confirm"] for one in moves],
            by_hand,
            against=f"sums in {_SESSIONS} sessions a node",
            shown=seconds,
            target=1.2,
            note=f"steps before: {', '.join(steps)}",
        ),
        limit("  shardctl's peak memory", peak, MEGABYTES, "MB"),
    ]


def back_and_forth(scale: Scale) -> list[Row]:
    """Move all shards of a node to another and back, ten times, and prune after each move.

    After each move `verify` must name nothing and there must be no slot; in the end, no file
    beside the data directories, the servers' logs and the pooler's own.
    """
    rounds = scale.of(10, 1)
    took: list[float] = []
    moves: list[Moved] = []
    left: list[str] = []
    with moving.sandbox(8, 2, 1) as fleet:
        expected = _files(fleet) | {"c", "c.log"}
        for number in range(2 * rounds):
            source, target = ("a", "c") if number % 2 == 0 else ("c", "a")
            say(f"  move {number + 1}: {source} to {target} ({moving.busy()})")
            moves.append(fleet.move("--from", source, "--all", "--to", target, "--retain", "0s"))
            took.append(fleet.prune())
            left += [f"{number + 1}: {what}" for what in _left(fleet)]
            fleet.remove(source)
        left += sorted(_files(fleet) - expected)
    for one in left:
        say(f"  left: {one}")
    return [
        Row(
            f"all shards to a node and back, {rounds} times: left behind",
            str(len(left)),
            "",
            target="0",
            met=not left,
            note=f"a move {seconds(statistics.median(one.took for one in moves))}, "
            f"pause {statistics.median(one.pause for one in moves) * 1000:.0f} ms, "
            f"prune {seconds(statistics.median(took))}; {moving.busy()}",
        )
    ]


def _copy(fleet: Sandbox) -> float:
    """Time pg_basebackup as a move calls it, and the start of a standby; then remove both."""
    node = fleet.node("a")
    directory = fleet.directory / "reference"
    account = accounts.server_account(None)
    program = binaries.find(None, account=account).program
    directory.mkdir(mode=0o700)
    if account is not None:
        shutil.chown(directory, account)
    data = directory / "data"
    source = f"host={node.host} port={node.port} user=postgres"
    copying: list[str | Path] = [
        program("pg_basebackup"),
        "-D",
        str(data),
        "-d",
        source,
        "--no-password",
        "-R",
    ]
    copying += ["--wal-method=stream", "--checkpoint=fast", "--progress", "--no-manifest"]
    control = [program("pg_ctl"), "-s", "-w", "-D", str(data)]
    starting: list[str | Path] = [*control, "-l", str(directory / "log"), "-t", "300"]
    starting += ["-o", f"-p {free_ports(1)[0]}", "start"]
    how: dict[str, Any] = {"user": account, "cwd": "/", "stdin": subprocess.DEVNULL}
    try:
        began = time.perf_counter()
        fleets.run(copying, **how)
        fleets.run(starting, **how)
        took = time.perf_counter() - began
        fleets.run([*control, "-m", "immediate", "stop"], **how)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return took


def _left(fleet: Sandbox) -> list[str]:
    """Name slots, and what `verify` complains about."""
    found = []
    for state in servers.status(fleet.topology()):
        if state.state == "up":
            with fleet.connect(state.node.name) as connection:
                slots = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
            found += [f"node {state.node.name}: slot {name}" for (name,) in slots]
    argv: list[str | Path] = [fleets.SHARDCTL, "--topology", fleet.path, "verify"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        found.append(f"verify: {done.stdout.strip()} {done.stderr.strip()}")
    return found


def _files(fleet: Sandbox) -> set[str]:
    """List what stands beside the data directories, and in the pooler's."""
    data = fleet.directory / "data"
    return {str(path.relative_to(data)) for path in (*data.iterdir(), *(data / "p1").iterdir())}
