"""What goes wrong on purpose; each fault is over when its function returns."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from tests.chaos.world import CLOCKED_NODE, SMALL_NODE, SMALL_POOLER

if TYPE_CHECKING:
    import random
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

    from tests.chaos.world import World

_AHEAD = "SELECT extract(epoch FROM clock_timestamp())::float8 - %s"
_ours = "application_name LIKE 'shardctl%'"
_ELSEWHERE = (
    "CREATE TABLE {0}.made_elsewhere (id bigint PRIMARY KEY)",
    "ALTER TABLE {0}.made_elsewhere ADD COLUMN more int",
    "CREATE INDEX made_elsewhere_too ON {0}.chaos_rows (version)",
    "DROP INDEX {0}.made_elsewhere_too",
    "DROP TABLE {0}.made_elsewhere",
)
_TABLES = ("chaos_rows", "chaos_notes", "chaos_parts", "chaos_keyless")


class Harm:
    """Faults around one command that works on some nodes and shards."""

    def __init__(
        self,
        world: World,
        command: subprocess.Popen[str],
        nodes: Sequence[str],
        shards: Sequence[int],
        chance: random.Random,
    ) -> None:
        self.world, self.command, self.nodes, self.shards = world, command, nodes, shards
        self.random = chance

    def command_killed(self) -> None:
        """SIGKILL for shardctl and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.command.pid, signal.SIGKILL)

    def command_stopped(self) -> None:
        """SIGSTOP for shardctl for some seconds, at times beyond the pause's budget."""
        self._stopped([self.command.pid], self.random.choice([0.3, 2, 8]))

    def guards_killed(self) -> None:
        """SIGKILL for the guards on the poolers' host."""
        for pid in self.world.guards():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pooler_killed(self) -> None:
        """SIGKILL for a pooler, which is started again."""
        self._killed(self.world.pid_of_pooler(self._pooler()))
        self.world.heal()

    def pooler_stopped(self) -> None:
        """SIGSTOP for a pooler for some seconds."""
        self._stopped([self.world.pid_of_pooler(self._pooler())], self.random.uniform(0.2, 3))

    def server_crashed(self) -> None:
        """SIGQUIT for a server, which recovers when it is started again."""
        pid = self.world.pid_of_node(self._node())
        if pid is not None:
            os.kill(pid, signal.SIGQUIT)
            _gone(pid)
        self.world.heal()

    def server_failed_over(self) -> None:
        """Replace a server by a standby that had all of its WAL, and no slots, at its address.

        It is the same directory, which leaves recovery on a new timeline, as a promotion does.
        """
        node = self._node()
        pid, data = self.world.pid_of_node(node), self.world.directory_of_node(node)
        if pid is None:
            return
        os.kill(pid, signal.SIGQUIT)
        _gone(pid)
        for slot in (data / "pg_replslot").iterdir():
            shutil.rmtree(slot)
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
        wanted = data / "recovery.signal"
        wanted.touch()
        shutil.chown(wanted, data.owner(), data.group())
        self.world.heal()

    def server_stopped(self) -> None:
        """SIGSTOP for all processes of a server for some seconds."""
        node = self._node()
        with contextlib.suppress(psycopg.Error):
            pids = [pid for (pid,) in self.world.ask(node, "SELECT pid FROM pg_stat_activity")]
            self._stopped([self.world.pid_of_node(node), *pids], self.random.uniform(0.2, 3))

    def sessions_ended(self) -> None:
        """End shardctl's own sessions on a node."""
        self._ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_ours}")

    def senders_ended(self) -> None:
        """End what sends and applies the stream."""
        self._ask(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type IN"
            " ('walsender', 'logical replication worker')"
        )

    def clients_ended(self) -> None:
        """End the clients' sessions on a node."""
        self._ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    def slots_dropped(self) -> None:
        """Drop a move's slots that are idle just now."""
        self._ask(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name LIKE 'shardctl%' AND NOT active"
        )

    def little_wal(self) -> None:
        """Let the source keep next to no WAL for slots, for a moment."""
        node = self._node()
        with self._altered(node, "max_slot_wal_keep_size", "1MB"):
            self._ask("SELECT pg_switch_wal()", node)
            self._ask("CHECKPOINT", node)
            time.sleep(self.random.uniform(0.5, 2))

    def table_locked(self) -> None:
        """LOCK TABLE of a moved shard, for a while."""
        self._in_transaction("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE")

    def table_altered(self) -> None:
        """Add a column to a table of a moved shard, in a transaction that stays open."""
        name = f"added_{self.random.randrange(10**9)}"
        self._in_transaction(f"ALTER TABLE {{}} ADD COLUMN {name} int")

    def table_granted(self) -> None:
        """GRANT on a table of a moved shard, in a transaction that stays open."""
        self._in_transaction("GRANT SELECT ON {} TO pg_monitor")

    def table_made(self) -> None:
        """Create a table in a moved shard, in a transaction that stays open; it names its node."""
        node = self._node()
        name = f"made_{node}_{self.random.randrange(10**9)}"
        self._in_transaction(f"CREATE TABLE {{schema}}.{name} (id bigint PRIMARY KEY)", node)

    def table_vacuumed(self) -> None:
        """VACUUM FULL of a table of a moved shard."""
        self._alone("VACUUM FULL {}")

    def table_made_elsewhere(self) -> None:
        """Create and drop a table, and alter it, in a shard that stays."""
        with contextlib.suppress(psycopg.Error):
            owners = self.world.owners()
            shard = self.random.choice([n for n in range(len(owners)) if n not in self.shards])
            schema = sql.Identifier(f"shard{shard}")
            with self.world.connect(owners[shard]) as connection:
                for statement in _ELSEWHERE:
                    connection.execute(sql.SQL(statement).format(schema))

    def topology_edited(self) -> None:
        """Another operator writes a comment into the topology file."""
        file = self.world.file
        new = file.with_name("edited.yaml")
        new.write_text(f"{file.read_text()}# {self.random.randrange(10**9)}\n")
        new.rename(file)

    def aliases_read_only(self) -> None:
        """No file can be written where a pooler's aliases are, for some seconds."""
        directory = self.world.directory_of_pooler(self._pooler())
        mode = directory.stat().st_mode
        directory.chmod(0o555)
        time.sleep(self.random.uniform(0.5, 5))
        directory.chmod(mode)

    def node_disk_filled(self) -> None:
        """A node's disk is full for some seconds; one that needs WAL then ends by a PANIC."""
        segments = self.random.choice([0, 20])
        with (
            self._filled(self.world.directory_of_node(SMALL_NODE).parent),
            contextlib.suppress(psycopg.Error),
            self.world.connect(SMALL_NODE) as connection,
        ):
            for _ in range(segments):
                connection.execute("SELECT pg_logical_emit_message(true, 'chaos', '')")
                connection.execute("SELECT pg_switch_wal()")
        while self.world.pid_of_node(SMALL_NODE) is not None:  # until it has recovered, or ended
            with contextlib.suppress(psycopg.Error):
                self.world.ask(SMALL_NODE, "SELECT 1")
                break
            time.sleep(0.1)
        self.world.heal()

    def pooler_disk_filled(self) -> None:
        """The disk with a pooler's files is full for some seconds."""
        with self._filled(self.world.directory_of_pooler(SMALL_POOLER)):
            pass

    def clock_off(self) -> None:
        """A server's clock is some seconds ahead or behind for a while, and then right again."""
        ahead = self.random.choice([-8, -5, 5, 8])
        self._set_clock(ahead)
        time.sleep(self.random.uniform(3, 8))
        with contextlib.suppress(psycopg.Error), self.world.connect(CLOCKED_NODE) as connection:
            shown = connection.execute(_AHEAD, [time.time()]).fetchone()
            if shown is None or abs(shown[0] - ahead) > 3:
                raise RuntimeError(f"a clock that is {ahead} s ahead shows {shown}")
        self._set_clock(0)

    def stale_operator(self) -> None:
        """A command with the topology file of the first day."""
        self.world.call(*self.random.choice(_COMMANDS), seconds=120, file=self.world.first)

    def another_operator(self) -> None:
        """Another operator's command meanwhile."""
        words = self.random.choice(_COMMANDS)
        self.world.call(*words, seconds=120)

    @contextlib.contextmanager
    def _filled(self, disk: Path) -> Iterator[None]:
        """Leave no room on a disk during the block and for some seconds."""
        ballast = disk / "ballast"
        try:
            with ballast.open("wb") as file:
                for size in (1 << 20, 1 << 12):
                    with contextlib.suppress(OSError):
                        while True:
                            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            yield
            time.sleep(self.random.uniform(2, 6))
        finally:
            ballast.unlink()

    def _set_clock(self, ahead: int) -> None:
        new = self.world.clock.with_name("new")
        new.write_text(f"{ahead:+d}\n")
        new.rename(self.world.clock)  # as a whole: a server reads it at any moment

    @contextlib.contextmanager
    def _altered(self, node: str, name: str, value: str) -> Iterator[None]:
        setting = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), value)
        back = sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name))
        try:
            self._set(node, setting)
            yield
        finally:
            self._set(node, back)

    def _set(self, node: str, statement: sql.Composed) -> None:
        with contextlib.suppress(psycopg.Error), self.world.connect(node) as connection:
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    def _in_transaction(self, statement: str, node: str | None = None) -> None:
        with (
            contextlib.suppress(psycopg.Error),
            self.world.connect(node or self._node()) as connection,
            connection.transaction(),
        ):
            connection.execute("SET LOCAL lock_timeout = '2s'")
            connection.execute(self._of_table(statement))
            time.sleep(self.random.uniform(0.1, 1.5))

    def _alone(self, statement: str) -> None:
        with contextlib.suppress(psycopg.Error), self.world.connect(self._node()) as connection:
            connection.execute("SET lock_timeout = '2s'")
            connection.execute(self._of_table(statement))

    def _of_table(self, statement: str) -> sql.Composed:
        schema = sql.Identifier(f"shard{self.random.choice(self.shards)}")
        table = sql.SQL("{}.{}").format(schema, sql.Identifier(self.random.choice(_TABLES)))
        return sql.SQL(statement).format(table, schema=schema)

    def _ask(self, question: str, node: str | None = None) -> None:
        """Ask a node that may be down, or refuse."""
        with contextlib.suppress(psycopg.Error):
            self.world.ask(node or self._node(), question)

    def _node(self) -> str:
        return self.random.choice(self.nodes)

    def _pooler(self) -> str:
        found: str = self.random.choice(list(self.world.written()["poolers"]))
        return found

    def _killed(self, pid: int | None) -> None:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            _gone(pid)

    def _stopped(self, pids: Sequence[int | None], seconds: float) -> None:
        there = [pid for pid in pids if pid is not None and _send(pid, signal.SIGSTOP)]
        time.sleep(seconds)
        for pid in there:
            _send(pid, signal.SIGCONT)


FAULTS: dict[str, Callable[[Harm], None]] = {
    name: one for name, one in vars(Harm).items() if callable(one) and not name.startswith("_")
}
"""By name; all of them, in the order above."""
UNFELT = {
    "command_killed", "guards_killed", "senders_ended", "slots_dropped", "table_made",
    "table_made_elsewhere", "topology_edited", "stale_operator", "another_operator",
    "stopped by SIGKILL",
}  # fmt: skip
"""Of these clients notice nothing, or wait: an error beside them has no excuse."""

_COMMANDS = (
    ["verify"],
    ["verify", "--deep"],
    ["status"],
    ["init", "--yes"],
    ["migrate", "--yes"],
    ["pgbouncer", "apply", "--yes"],
    ["prune", "--yes", "--now"],
    ["moves", "doctor"],
    ["moves", "list"],
)


def run(harm: Harm, name: str) -> tuple[float, float]:
    """Do one, and tell when."""
    began = time.time()
    FAULTS[name](harm)
    return began, time.time()


def _send(pid: int, which: signal.Signals) -> bool:
    try:
        os.kill(pid, which)
    except ProcessLookupError:
        return False
    return True


def _gone(pid: int) -> None:
    """Wait until a process has ended."""
    while _alive(pid):
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
