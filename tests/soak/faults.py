"""What goes wrong during an operation: each fault begins, lasts, and is undone by itself."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psycopg

from shardctl.postgres import pidfile
from shardctl.topology import loader
from tests.fixtures.servers.postgres import kill_all, wait_for
from tests.soak import faults_sql
from tests.soak.commands import PRUNE, Command
from tests.soak.fleet import ROLE
from tests.soak.scene import GRACE_S
from tests.soak.windows import FENCE, READ_ONLY, TERMINATED, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tests.soak.scene import Scene
    from tests.soak.schedule import Fault

NOTHING = "nothing there"
_SECOND = (
    ("moves", "abort", "--yes"),
    ("moves", "resume", "--yes"),
    ("init", "--yes"),
    PRUNE,
    ("pgbouncer", "apply", "--yes"),
)
_PATIENCE_S = 60.0
_START_S = 30.0
_ARMED_S = 5.0


def kill_shardctl(scene: Scene, fault: Fault) -> str:
    del fault
    if not scene.command.running:
        return NOTHING
    scene.disturb()
    scene.command.process.kill()
    scene.command.process.wait()
    return "killed"


def stop_shardctl(scene: Scene, fault: Fault) -> str:
    if not scene.command.running:
        return NOTHING
    scene.command.process.send_signal(signal.SIGSTOP)
    scene.disturb()
    try:
        scene.hold(fault.lasting_s)
    finally:
        scene.command.process.send_signal(signal.SIGCONT)
    return f"stopped for {fault.lasting_s:.1f} s"


def kill_guard(scene: Scene, fault: Fault) -> str:
    del fault
    pooler = scene.pooler()
    if not (guards := _guards(scene, pooler)):
        return NOTHING
    began = time.monotonic()
    _signal(guards, signal.SIGKILL)
    scene.cleanups.append(lambda: scene.excuse("guard", pooler, began, time.monotonic()))
    return f"{len(guards)} processes of {pooler}"


def stop_guard(scene: Scene, fault: Fault) -> str:
    pooler = scene.pooler()
    if not (guards := _guards(scene, pooler)):
        return NOTHING
    began = time.monotonic()
    _signal(guards, signal.SIGSTOP)
    try:
        scene.hold(fault.lasting_s)
    finally:
        _signal(guards, signal.SIGCONT)
        scene.excuse("guard", pooler, began, time.monotonic())
    return f"{len(guards)} processes of {pooler} for {fault.lasting_s:.1f} s"


def kill_pooler(scene: Scene, fault: Fault) -> str:
    pooler = scene.pooler()
    if (pid := scene.fleet.pooler_pid(pooler)) is None:
        return NOTHING
    window = scene.pooler_out(pooler, "a pooler was killed")
    os.kill(pid, signal.SIGKILL)
    scene.hold(fault.lasting_s)
    # What it was is a zombie for a moment, or its port is not free.
    scene.fleet.start_pooler(pooler)
    window.end = time.monotonic() + GRACE_S
    scene.excuse("pooler", pooler, window.begin, time.monotonic())
    return f"{pooler} for {window.end - GRACE_S - window.begin:.1f} s"


def stop_pooler(scene: Scene, fault: Fault) -> str:
    pooler = scene.pooler()
    if (pid := scene.fleet.pooler_pid(pooler)) is None:
        return NOTHING
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        scene.hold(fault.lasting_s)
    finally:
        _signal([pid], signal.SIGCONT)
        scene.excuse("pooler", pooler, began, time.monotonic())
    return f"{pooler} for {fault.lasting_s:.1f} s"


def kill_server(scene: Scene, fault: Fault) -> str:
    node = scene.node()
    if not (found := pidfile.orphans(scene.fleet.data(node))):
        return NOTHING
    window = scene.node_out(node, "a server was killed")
    kill_all(lambda: pidfile.orphans(scene.fleet.data(node)))
    scene.hold(fault.lasting_s)
    _start(scene, node, window)
    return f"{len(found)} processes of {node} for {window.end - GRACE_S - window.begin:.1f} s"


def stop_server(scene: Scene, fault: Fault) -> str:
    node = scene.node()
    if not pidfile.orphans(scene.fleet.data(node)):
        return NOTHING
    stopped: set[int] = set()
    window = scene.node_out(node, "a server was stopped")
    try:
        # What one of them had started before it was stopped is on the next list.
        while new := set(pidfile.orphans(scene.fleet.data(node))) - stopped:
            stopped |= new
            _signal(new, signal.SIGSTOP)
        scene.hold(fault.lasting_s)
    finally:
        _signal(stopped, signal.SIGCONT)
        window.end = time.monotonic() + GRACE_S
    return f"{node} for {fault.lasting_s:.1f} s"


def cut_shardctl(scene: Scene, fault: Fault) -> str:
    del fault
    ended = _terminate(
        scene, "application_name LIKE 'shardctl %' AND wait_event IS DISTINCT FROM 'PgSleep'"
    )
    scene.disturb()
    return ended


def cut_guard(scene: Scene, fault: Fault) -> str:
    """End the sessions in a node that sleep: the source's guard, and those of slots.

    Then only a pooler's guard ends a cutover for a shardctl that dies, and does not lift the fence.
    """
    del fault
    began = time.monotonic()
    window = Window("the source's guard was ended", began, shards=frozenset(scene.shards))
    window.codes = FENCE | READ_ONLY
    scene.notes.windows.append(window)
    scene.cleanups.append(lambda: _end(window))
    scene.disturb()
    condition = "application_name LIKE 'shardctl %' AND wait_event = 'PgSleep'"
    return _terminate(scene, condition, node=scene.source or scene.node())


def cut_clients(scene: Scene, fault: Fault) -> str:
    del fault
    began = time.monotonic()
    window = Window("sessions of clients were ended", began, began + GRACE_S, codes=TERMINATED)
    scene.notes.windows.append(window)
    return _terminate(scene, f"usename = '{ROLE}'")


def fill_disk(scene: Scene, fault: Fault) -> str:
    if not scene.fleet.disks:
        return "not possible here: no disks of their own"
    node = scene.node()
    window = scene.node_out(node, "a disk was full")
    filler = scene.fleet.disk(node) / "filler"
    try:
        with filler.open("wb") as file:
            free = shutil.disk_usage(scene.fleet.disk(node)).free
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, free - 4096))
        scene.hold(fault.lasting_s)
    finally:
        filler.unlink()
    _start(scene, node, window)
    return f"{node} for {fault.lasting_s:.1f} s"


def immutable_file(scene: Scene, fault: Fault) -> str:
    pooler = scene.pooler()
    files = [scene.fleet.path]
    files += scene.fleet.disk(pooler).glob("*databases*.ini")
    file = scene.chance.choice(files)
    if not _chattr("+i", file):
        return "not possible here: chattr"
    shards = frozenset(scene.shards)
    if file != scene.fleet.path:
        window = scene.pooler_out(pooler, "a pooler's file could not be written")
        window.shards, window.codes = shards, FENCE | READ_ONLY
        scene.cleanups.append(lambda: _end(window))
    try:
        scene.hold(fault.lasting_s)
    finally:
        _chattr("-i", file)
    return f"{file.name} for {fault.lasting_s:.1f} s"


def second_operator(scene: Scene, fault: Fault) -> str:
    words = _SECOND[int(fault.pick * len(_SECOND))]
    if words == PRUNE:
        scene.read_retired()
    return _run(scene, words)


def stale_topology(scene: Scene, fault: Fault) -> str:
    """Use a topology file of before a move: no command may follow it."""
    here = scene.observer.owners()
    stale = [file for file in scene.notes.stale if _owners(file) != here]
    if not stale:
        return NOTHING
    file = stale[int(fault.pick * len(stale))]
    words = scene.chance.choice([("init", "--yes"), ("pgbouncer", "apply", "--yes")])
    told = _run(scene, words, topology=file)
    # The operation may have given the shards back to whom the file has.
    follows = _owners(file) in (here, scene.observer.owners())
    if scene.extra[-1].process.returncode == 0 and not follows:
        scene.notes.wrong.append(f"{told} with a stale topology was not refused")
    return f"{told} with a stale topology"


FAULTS: Mapping[str, Callable[[Scene, Fault], str]] = {
    "kill shardctl": kill_shardctl,
    "stop shardctl": stop_shardctl,
    "kill guard": kill_guard,
    "stop guard": stop_guard,
    "kill pooler": kill_pooler,
    "stop pooler": stop_pooler,
    "kill server": kill_server,
    "stop server": stop_server,
    "cut shardctl": cut_shardctl,
    "cut guard": cut_guard,
    "cut clients": cut_clients,
    "fill disk": fill_disk,
    "immutable file": immutable_file,
    "second operator": second_operator,
    "stale topology": stale_topology,
    "vacuum full": faults_sql.vacuum_full,
    "lock table": faults_sql.lock_table,
    "alter": faults_sql.alter,
    "create table": faults_sql.create_table,
    "grant": faults_sql.grant,
}


def _start(scene: Scene, node: str, window: Window) -> None:
    """Start a server again unless shardctl has, or has taken its directory away."""

    def started() -> bool:
        fleet = scene.fleet
        fleet.start(node)
        return not fleet.has_data(node) or fleet.answers(node)

    try:
        wait_for(started, seconds=_START_S)
    finally:
        window.end = time.monotonic() + GRACE_S


def _guards(scene: Scene, pooler: str) -> list[int]:
    """Wait a while for guards of a pooler: they are there in the cutover only."""
    found: list[int] = []

    def armed() -> bool:
        found[:] = scene.fleet.guards(pooler)
        return bool(found) or not scene.command.running

    with contextlib.suppress(AssertionError):
        wait_for(armed, seconds=_ARMED_S)
    return found


def _end(window: Window) -> None:
    window.end = min(window.end, time.monotonic() + GRACE_S)


def _terminate(scene: Scene, condition: str, *, node: str = "") -> str:
    node = node or scene.node()
    query = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {condition}"
    try:
        with scene.fleet.connect(node) as session:
            [(count,)] = session.execute(query.encode()).fetchall()
    except psycopg.Error:
        return NOTHING
    return f"{count} sessions on {node}"


def _run(scene: Scene, words: Iterable[str], *, topology: Path | None = None) -> str:
    command = Command(scene.fleet, [*words], topology=topology)
    scene.extra.append(command)
    code = command.wait(_PATIENCE_S)
    return f"{' '.join(command.words)}: {code}"


def _owners(file: Path) -> dict[int, str]:
    return {int(shard): str(node) for shard, node in loader.load(file).owners().items()}


def _chattr(change: str, file: Path) -> bool:
    words = ["chattr", change, str(file)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
