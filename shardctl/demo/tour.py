"""The tour of `shardctl demo`: it runs the commands, and moves shards while clients write.

The fleet is the talk's example in a directory of its own, on free ports.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardctl
from shardctl import fanout
from shardctl.errors import Refused
from shardctl.ids.layout import Layout
from shardctl.router import ShardedDatabase
from shardctl.sandbox import poolers, servers
from shardctl.state.map import Map
from shardctl.testing.fleet import held_ports
from shardctl.topology import edit, loader, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.topology.model import Topology

    Step = tuple[str, str, str]


ROWS = 3000
"""Rows to write into every shard."""
MOVES = (("2-3", "c"), ("6-7", "d"), ("1", "b"))
"""Nodes c and d have no server before, so they are clones; node b serves, so its shard streams."""
CLIENTS, LOGINS = 8, 50
"""Clients of the load, and additional logins a second, also while clients wait."""
_LOAD = (
    *("sandbox", "traffic", "--clients", f"{CLIENTS}", "--rate", "100"),
    *("--connect", "--logins", f"{LOGINS}", "--seconds", "1d"),
)
"""100 operations a second per client: enough load for any laptop."""


@contextmanager
def fleet(*, keep: bool) -> Iterator[Topology]:
    """Give a topology in a directory of its own; stop and remove all at the end, unless `keep`."""
    directory = Path(tempfile.mkdtemp(prefix="shardctl-demo-"))
    # If shardctl runs as root, the servers run as another user, who must be able to enter.
    directory.chmod(0o755)
    with ExitStack() as ends:
        ends.callback(shutil.rmtree, directory)
        topology = loader.load(lay_out(directory, poolers=poolers.program() is not None))
        ends.callback(servers.down, topology, fanout.Silent(), delete=True)
        ends.callback(poolers.down, topology, fanout.Silent(), delete=True)
        yield topology
        if keep:
            ends.pop_all()


def _argv(topology: Topology, words: tuple[str, ...]) -> list[str]:
    program = (sys.executable, "-P", "-m", "shardctl")
    return [*program, *words, "--topology", str(topology.path)]


def show(topology: Topology, *words: str) -> None:
    """Let a command print its result."""
    subprocess.run(_argv(topology, words), check=False, stdin=subprocess.DEVNULL)


def result(topology: Topology, *words: str) -> Any:
    """Run a command, and give what it prints as JSON; raises demo_failed."""
    argv = [*_argv(topology, words), "-o", "json"]
    done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return _read(words, done.returncode, done.stdout)


def _read(words: tuple[str, ...], code: int, output: bytes) -> Any:
    if code:
        raise Refused(
            "demo_failed",
            f"the demo failed: `shardctl {' '.join(words)}` ended with exit code {code}: "
            f"{output.decode()}",
            hint="this is a bug; please report it",
        )
    return json.loads(output)


def run(topology: Topology) -> Iterator[Step]:
    """Run the tour, and yield each step as it ends, with its seconds; raises demo_failed."""
    began = time.monotonic()

    def step(did: str, result: str) -> Step:
        nonlocal began
        now = time.monotonic()
        taken, began = now - began, now
        return did, result, f"{taken:.2f}"

    up = result(topology, "sandbox", "up")
    majors = {one["major"] for one in result(topology, "sandbox", "status")["nodes"]} - {None}
    started = f"{len(up['nodes'])} x PostgreSQL {', '.join(majors)}"
    yield step("servers started", f"{started}, {len(up['poolers'])} x PgBouncer")

    result(topology, "init", "--yes")
    owned = ", ".join(f"{n.name}: {ranges.of(n.shards)}" for n in topology.owning())
    yield step("shardctl init", f"{topology.shard_count} shards ({owned})")
    again = result(topology, "init", "--yes")
    yield step("shardctl init, once more", f"{len(again['changes']) or 'nothing'} to do")

    yield from _rows(topology, step)
    with _load(topology) as end:
        for shards, target in MOVES:
            words = ("move-shards", shards, "--to", target)
            move = result(topology, *words, "--keep-reverse", "0", "--yes")
            how = "cloned" if move["method"] == "clone" else "streamed from"
            waited = f"clients waited {move['report']['pause_ms']:.0f} ms"
            yield step(f"shardctl {' '.join(words)}", f"{how} {move['source']}; {waited}")
        found = end()
    done = sum(found["operations"].values())
    load = f"{done:,} operations: {CLIENTS} clients, {LOGINS} logins a second"
    yield step("load during the moves", load)
    yield step("longest wait", _waits(found))
    yield step("longest wait of a login", _waits(found["logins"]))
    written, errors = found["acknowledged"]["inserts"], len(found["errors"])
    yield step(
        "compared with the fleet",
        f"{written:,} rows: {errors} errors, {found['lost']} lost, "
        f"{found['duplicates']} duplicates",
    )
    result(topology, "verify", "--deep", "--strict")
    given = result(topology, "prune", "--now", "--yes")["reclaimed_bytes"]
    yield step("shardctl verify, prune", f"all is well, {given / 2**20:.1f} MB freed")


def _waits(found: dict[str, Any]) -> str:
    moved, stayed = found["longest_moved_ms"] or 0, found["longest_stayed_ms"] or 0
    return f"{moved:.0f} ms on moved shards, {stayed:.0f} ms elsewhere"


def _rows(topology: Topology, step: Callable[[str, str], Step]) -> Iterator[Step]:
    """Write rows as an application does, and look at their ids."""
    users = range(ROWS * topology.shard_count)
    with ShardedDatabase(topology, connect={"user": topology.database.app_roles[0]}) as database:
        database.insert_many(
            "photos_by_user",
            [{"user_id": user, "caption": "a sunset", "image_url": f"/{user}"} for user in users],
            key_field="user_id",
        )
        rows = database.scatter(["id", "user_id"], "photos_by_user", limit=2 * len(users))
    way = "through PgBouncer" if topology.poolers else "on the nodes"
    yield step("rows written", f"{len(rows):,} {way}, by shardctl.router")
    layout, owners = Layout.of(topology.id), Map.of(topology)
    wrong = sum(layout.decode(row).shard != owners.shard_of(user) for row, user in rows)
    yield step("ids checked", f"{len(dict(rows)):,} distinct, {wrong} in a wrong shard")
    row, user = rows[len(rows) // 2]
    one = result(topology, "decode-id", str(row))
    found = f"{one['time']}, shard {one['shard']}, sequence {one['sequence']}"
    yield step(f"shardctl decode-id {row}", found)
    one = result(topology, "route", "--id", str(row))
    found = f"{one['schema']} on node {one['node']}: the row of user {user}"
    yield step(f"shardctl route --id {row}", found)


@contextmanager
def _load(topology: Topology) -> Iterator[Callable[[], Any]]:
    """Let clients write while a block runs; what it is given ends them, and gives their result."""
    aliases = "shard" if topology.poolers else "direct"
    argv = [*_argv(topology, _LOAD), "--aliases", aliases, "-o", "json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as load:

        def end() -> Any:
            load.send_signal(signal.SIGINT)
            output, errors = load.communicate()
            return _read(_LOAD, load.returncode, output or errors)

        try:
            if load.stderr is not None:
                load.stderr.readline()  # that of the first second
            yield end
        finally:
            load.kill()


_POOLERS = re.compile(r"^poolers:\n(?:[ \t].*\n|\n)+", re.MULTILINE)


def source() -> Path:
    """Return the directory of the example, in a wheel or at the root of a checkout."""
    package = Path(shardctl.__file__).parent
    wheel = package / "demo" / "example"
    return wheel if wheel.is_dir() else package.parent


def lay_out(directory: Path, *, poolers: bool, example: Path | None = None) -> Path:
    """Copy the talk's example, or another, with free ports; return its topology file.

    Removes the poolers on request; the rest of the file stays the same.
    """
    example = example or source()
    shutil.copytree(example / "migrations", directory / "migrations")
    text = (example / "topology.yaml").read_text(encoding="utf-8")
    if not poolers:
        text = _POOLERS.sub("", text)
    file = directory / "topology.yaml"
    topology = loader.parse(text.encode(), file)
    servers = [("nodes", str(name), "port") for name in topology.nodes]
    servers += [("poolers", str(name), "port") for name in topology.poolers]
    with held_ports("127.0.0.1", len(servers)) as ports:
        free: dict[tuple[str, ...], str] = dict(zip(servers, map(str, ports), strict=True))
    file.write_text(edit.replace_scalars(text, free), encoding="utf-8")
    return file
