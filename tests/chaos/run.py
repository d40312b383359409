"""`make chaos MINUTES=60 SEED=1`: moves and faults beside clients, and what the checker says."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from tests.bench import fleet, moving
from tests.chaos import checker, faults, history, page, schedule
from tests.chaos.checker import Ended, Violation
from tests.chaos.world import (
    CLOCKED_NODE,
    SMALL_NODE,
    SMALL_POOLER,
    World,
    as_mapping,
    ranges,
)
from tests.fixtures.servers.postgres import free_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.schedule import Round

SHARDS, NODES, SPARES = 32, 4, 4
USUAL_S = 8.0
"""About how long a streamed move of a few small shards takes beside this load."""
GUARDED_S = 12.0
"""How long aliases may be paused: the budget of 5 s, a guard's second and its work, and a fault."""
AFTERWARDS_S = 15.0
"""How long after a fault clients may still meet its errors."""
TRIES = 6
_CLONE_NEWNS = 0x20000
_CLOCKED = """\
#!/bin/sh
here=${0%/*}
export LD_PRELOAD="$here/library" FAKETIME_TIMESTAMP_FILE="$here/clock" FAKETIME_CACHE_DURATION=1
export FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1
exec "$here/real/postgres" "$@"
"""
"""A server whose clock is wrong by the seconds in a file, which it reads every other second."""


@dataclass
class Run:
    """What a run has done so far."""

    world: World
    directory: Path
    log: Any
    windows: list[tuple[float, float, str]] = field(default_factory=list)
    moving: list[tuple[float, float]] = field(default_factory=list)
    """When commands ran that may move shards away from who asks a node itself."""
    owners: list[list[str]] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)
    moves: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    """Faults that cannot be done here, and why."""

    def say(self, what: str, **more: Any) -> None:
        """Note what was done, when, and what came of it."""
        self.log.write(json.dumps({"at": round(time.time(), 3), "what": what} | more) + "\n")
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what} {more.get('result', '')}\n")

    def round(self, one: Round) -> None:
        """Do a command beside its faults, and see that all ends."""
        chance = random.Random(one.seed)  # noqa: S311  # no secret
        began = time.time()
        words, nodes, shards = self._command(one, chance)
        command = self.world.start(*words, at=one.at if one.act in _STOPS else None)
        ended: dict[str, Any] = {}
        watcher = threading.Thread(target=_follow, args=[self.world, command, ended])
        watcher.start()
        beside = self._beside(nodes, one, chance) if one.act == "beside" else None
        harm = faults.Harm(self.world, command, nodes, shards, chance)
        for share, name in one.faults:
            if name in self.left_out:
                continue
            while watcher.is_alive() and time.time() < began + share * USUAL_S:
                watcher.join(0.05)
            since = time.time()
            faults.FAULTS[name](harm)
            self.windows.append((since, time.time() + AFTERWARDS_S, name))
            self.say(f"fault {name}", took=round(time.time() - since, 2))
        watcher.join()
        if beside is not None:
            code, said = self.world.finish(beside, 240)
            self.say("beside it", result=code, said=said[-600:])
        self.say(
            " ".join(words), at_substep=one.at, result=ended["code"], said=ended["said"][-600:]
        )
        if one.at is not None:
            self.windows.append((began, time.time() + AFTERWARDS_S, f"stopped by {one.at[1]}"))
        self.world.heal()
        if one.act == "read-only":
            self.world.call("read-only", "off", words[2], "--yes")
            self.windows.append((began, time.time(), "read-only"))
        self._end(one.ends)
        self.moving.append((began, time.time()))
        self.owners.append(self.world.owners())

    def _command(
        self, given: Round, chance: random.Random
    ) -> tuple[list[str], list[str], list[int]]:
        """Make up a command's words, the nodes and the shards that it concerns."""
        nodes, spares = self.world.nodes(), self.world.spares()
        source, target, shards = schedule.shards_to_move(self.world.owners(), nodes, chance)
        others = [n for n in range(SHARDS) if n not in shards]
        match given.act:
            case "reverse" if reversible := self._reversible():
                one = chance.choice(reversible)
                return (
                    ["moves", "finish" if given.seed % 4 == 0 else "reverse", one["id"], "--yes"],
                    [one["source"], one["target"]],
                    one["shards"],
                )
            case "clone" if spares:
                self.moves += 1
                half = ["--from", source, "--half", "--to", spares[0], "--yes"]
                return ["move-shards", *half, "--lock-wait", "60s"], [source], shards
            case "prune" | "rebalance":
                return _WORDS[given.act], list(nodes), shards
            case "migrate":
                self._write_migration()
                return ["migrate", "--yes"], [source, target], shards
            case "read-only":
                number = str(chance.choice(others))
                return ["read-only", "on", number, "--yes"], [source, target], shards
        words = self._move(target, shards, given.seed, chance)
        return [*words, "--lock-wait", "60s"], [source, target], shards

    def _move(self, target: str, shards: list[int], seed: int, chance: random.Random) -> list[str]:
        keep = chance.choice(["0", "0", "10m"])
        method = ["--keep-reverse", keep, "--finish-reverse"]
        if seed % 8 == 0:
            method = ["--rehearse-only"]
        words = ["move-shards", ranges(shards), "--to", target, "--yes"]
        self.moves += 1
        # For chaos_keyless.
        return [*words, "--identity", "full", *method]

    def _beside(
        self, taken: list[str], given: Round, chance: random.Random
    ) -> subprocess.Popen[str] | None:
        """Begin a move between two other nodes; --lock-wait would wait for the first."""
        owners = self.world.owners()
        free = [node for node in self.world.nodes() if node not in taken]
        if len(free) < 2 or {*owners}.isdisjoint(free):
            return None
        source, target, shards = schedule.shards_to_move(
            [owner for owner in owners if owner in free], free, chance
        )
        shards = [n for n, owner in enumerate(owners) if owner == source][: len(shards)]
        return self.world.start(*self._move(target, shards, given.seed, chance))

    def _reversible(self) -> list[dict[str, Any]]:
        return [one for one in self.world.moves() if "reverse" in one["can"]]

    def _write_migration(self) -> None:
        folder = self.world.file.parent / "migrations"
        number = len(list(folder.glob("*.sql"))) + 1
        text = f"CREATE TABLE more_{number} (id bigint PRIMARY KEY DEFAULT next_id());\n"
        (folder / f"{number:04}_more.sql").write_text(text)

    def _end(self, how: str) -> None:
        """End what is unfinished: each by one `resume` or `abort`, now that nothing is broken."""
        tried: Counter[str] = Counter()
        for _ in range(TRIES):
            left = [
                one
                for one in self.world.moves()
                if one["state"] in _UNENDED or {"resume", "abort"} & {*one["can"]}
            ]
            if not left:
                return
            if tried[left[0]["id"]]:
                what = f"{left[0]['id']} is {left[0]['state']} after a command that could end it"
                self.found.append(Violation("unfinished", what))
            can = left[0]["can"]
            verb = (
                how if how in can else next((v for v in ("resume", "abort") if v in can), "resume")
            )
            # Of a rebalance that was killed, processes may be finishing their cutovers.
            given = ("--yes", "--lock-wait", "60s")
            code, said = self.world.call("moves", verb, left[0]["id"], *given)
            self.say(f"moves {verb} {left[0]['id']}", result=code, said=said[-600:])
            tried[left[0]["id"]] += not any(words in said for words in _CANNOT)
            how = "resume" if how == "abort" else "abort"  # as one that may not go on says
        self.found.append(Violation("unfinished", f"{left[0]['id']} for good"))
        raise RuntimeError(f"a move does not end: {left[0]}")

    def settled(self) -> None:
        """End all reverses, and see that all agree and that nothing is left over."""
        self.world.heal()
        self._end("resume")
        for one in self.world.moves():
            if "finish" in one["can"]:
                self.world.call("moves", "finish", one["id"], "--yes")
        self.owners.append(self.world.owners())
        self.found += [Violation("broken", one) for one in self.world.broken]
        self.found += [Violation("left_over", one) for one in self.world.left_over()]
        self.found += [Violation("disagree", one) for one in self.world.disagreements()]
        marks = "SELECT move, attempt, what, at::text FROM shardctl.stream ORDER BY at"
        self.say("marks", **{node: self.world.ask(node, marks) for node in self.world.nodes()})
        # What a node has that was away when a reverse ended is not seen by `left_over`.
        code, said = self.world.call("moves", "doctor", "--yes", "-o", "json")
        self.say("moves doctor", result=code, said=said)
        left = json.JSONDecoder().raw_decode(said)[0]["left"]
        self.found += unowned(left, self.world.moves())
        code, said = self.world.call("verify", "-o", "json")
        self.say("verify", result=code, said=said)
        self.found += wrong(json.JSONDecoder().raw_decode(said)[0]["findings"])


def unowned(left: list[dict[str, Any]], moves: list[dict[str, Any]]) -> list[Violation]:
    """Choose of what `moves doctor` lists what no absent node explains.

    `finish` goes on without a source that is away, or busy with another move: its retired copies
    stay closed, and the rows of the reverse that was given up stay there.
    """
    sources = {
        one["reverse"]["move"]: one["source"]
        for one in moves
        if one["reverse"] is not None and one["reverse"]["state"] == "finished"
    }
    return [
        Violation("left_over", f"{one['node']}: {one['kind']} {one['name']} of {one['move']}")
        for one in left
        if (one["kind"] != "triggers" or "__retired_" not in one["name"])
        and (one["kind"] != "records" or sources.get(one["move"]) != one["node"])
    ]


def wrong(findings: list[dict[str, Any]]) -> list[Violation]:
    """Choose of what `verify` finds what faults do not explain."""
    return [
        Violation("verify", f"{one['check']}: {one['object']}: {one['actual']}")
        for one in findings
        if one["severity"] != "note"
        and one["code"] not in _CHANGED
        and not (one["code"] == "copies_differ" and _MADE_ON_TARGET.fullmatch(one["actual"]))
    ]


_CHANGED = (
    "column_extra", "grant_differs", "index_extra", "move_unconfirmed", "pending", "table_extra",
)  # fmt: skip
"""What is there, or has not been done, because of faults."""
_MADE_ON_TARGET = re.compile(r"from \S+ to (\S+): the copies of (?:\S*made_\1_\d+(?:, )?)+ differ")
"""A superuser's table in a copy that is still closed: shardctl is right about it."""
_CANNOT = ("cannot be resumed", "can no longer be aborted", "belongs to a move")
"""Of a command that says what has to come first, or instead."""
_STOPS = ("move", "beside", "clone", "reverse")
_WORDS = {
    "prune": ["prune", "--yes", "--now"],
    "rebalance": ["rebalance", "apply", "--by=count", "--identity=full", "--parallel=2", "--yes"],
}
_UNENDED = ("running", "unfinished")


def _follow(world: World, command: subprocess.Popen[str], ended: dict[str, Any]) -> None:
    """Wait for a command; one that has stopped itself goes on after eight seconds."""
    stopped = threading.Event()

    def wake() -> None:
        while not stopped.wait(1):
            with contextlib.suppress(OSError, IndexError):
                state = Path(f"/proc/{command.pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state == "T" and not stopped.wait(7):
                    os.kill(command.pid, signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    ended["code"], ended["said"] = world.finish(command, 240)
    stopped.set()
    waker.join()


@contextlib.contextmanager
def clients(world: World, directory: Path) -> Iterator[None]:
    """Let clients work during the block."""
    argv: list[str | Path] = [sys.executable, "-m", "tests.chaos.clients", world.first, directory]
    with subprocess.Popen(
        argv, cwd=fleet.ROOT, stdin=subprocess.PIPE, start_new_session=True
    ) as one:
        try:
            yield
        finally:
            assert one.stdin is not None
            one.stdin.close()
            try:
                if one.wait(90) != 0:
                    raise RuntimeError(f"a client of chaos has failed: exit code {one.returncode}")
            finally:
                if one.poll() is None:
                    one.kill()


def main(minutes: float, seed: int, directory: Path) -> int:
    """Do it; give 1 where a promise was not kept. Odd seeds run the embedded, newer servers."""
    programs = max(binaries.embedded_directories()) if seed % 2 else None
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    prepare = partial(_prepared, programs=programs)
    with moving.sandbox(SHARDS, NODES, SPARES, programs=programs, prepare=prepare) as sandbox:
        first = sandbox.path.with_name("first.yaml")
        shutil.copy(sandbox.path, first)
        world = World(sandbox, first)
        with (directory / "schedule").open("w", buffering=1) as log:
            run = Run(world, directory, log, left_out=world.left_out())
            run.owners.append(world.owners())
            until = time.monotonic() + minutes * 60
            with world.watched(), clients(world, directory):
                for one in schedule.rounds(seed):
                    if time.monotonic() > until:
                        break
                    run.say("round", round=asdict(one))
                    run.round(one)
                run.settled()
            operations = list(history.read(directory))
            rows = list(world.rows())
    run.found += checker.check(operations, Ended(rows, as_mapping(run.owners)))
    windows = [(begin, end) for begin, end, _ in run.windows]
    run.found += checker.pauses(world.pauses, GUARDED_S, windows)
    text = page.write(directory / "index.html", run, operations, rows, seed)
    sys.stdout.write(text)
    return 1 if run.found else 0


def _prepared(text: str, directory: Path, *, programs: Path | None) -> str:
    """Make tables, small disks and a clock for a sandbox, and give its topology with these."""
    source = Path(__file__).with_name("tables.sql").read_text()
    (directory / "migrations" / "0003_chaos.sql").write_text(source)
    account = accounts.server_account(None)
    # Mounts of this process's own go with it and all that it has started, whatever ends them.
    disks = account is not None and ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0
    if account is not None and disks:
        fleet.run(["mount", "--make-rprivate", "/"])
        for name in (SMALL_NODE, SMALL_POOLER):
            disk = directory / f"disk-{name}"
            disk.mkdir()
            fleet.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=755", "none", disk])
            shutil.chown(disk, account)
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is not None:
        real, clocked = binaries.find(programs, account=account).directory, directory / "clocked"
        clocked.mkdir()
        for name in ("initdb", "pg_ctl"):
            (clocked / name).symlink_to(real / name)
        (clocked / "real").symlink_to(real)
        (clocked / "library").symlink_to(library)
        (clocked / "clock").write_text("+0\n")
        (clocked / "postgres").write_text(_CLOCKED)
        (clocked / "postgres").chmod(0o755)
    return arranged(text, directory, free_run(1).start, disks=disks, clock=library is not None)


def arranged(text: str, directory: Path, port: int, *, disks: bool, clock: bool) -> str:
    """Write a second pooler into a topology, and which node and pooler have what `_prepared` made.

    Of two nodes with places of their own, neither is the first: its place is that of the passfile.
    """
    of = yaml.safe_load(text)
    first = of["poolers"]["p1"]
    of["poolers"][SMALL_POOLER] = second = first | {"port": port}
    second["config"] = first["config"].replace("/p1/", f"/{SMALL_POOLER}/")
    if disks:
        second["config"] = f"{directory}/disk-{SMALL_POOLER}/pgbouncer.ini"
        of["nodes"][SMALL_NODE] |= {
            "data_directory": f"{directory}/disk-{SMALL_NODE}/data",
            "settings": {"max_wal_size": "96MB", "min_wal_size": "32MB"},
        }
    if clock:
        of["nodes"][CLOCKED_NODE]["bin_directory"] = f"{directory}/clocked"
    found: str = yaml.safe_dump(of, sort_keys=False, default_flow_style=None, width=1000)
    return found


if __name__ == "__main__":
    for each in fleet.ENDING:
        signal.signal(each, lambda number, _: sys.exit(128 + number))
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
