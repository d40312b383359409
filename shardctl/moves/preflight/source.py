"""Preflight of the source's server: its parameters, its standbys, who is at work, what we may."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psycopg

from shardctl.access.write_fence import QUERIES as WRITES
from shardctl.checks.status_look import QUERIES as STATUS
from shardctl.moves import admission, wal
from shardctl.moves import plan as planning
from shardctl.moves.preflight import clocks, login, managers, replication, rights, schemas, tls
from shardctl.moves.preflight import events as event_triggers
from shardctl.moves.preflight.events import Events
from shardctl.moves.preflight.fleet import QUERIES, refused
from shardctl.moves.refusals import SourceUnfit, collected, listed
from shardctl.postgres import OLDEST_MAJOR, copying, passfile
from shardctl.postgres.connection import connect
from shardctl.postgres.source import Source as CloneSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.checks.clock import Offset
    from shardctl.errors import ShardctlError
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.managers import Managed
    from shardctl.moves.preflight.tls import OfSource
    from shardctl.moves.wal import Wal
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Node, NodeName, ShardId, Topology

_SETTINGS = (
    *replication.STANDBY_CRITICAL,
    "archive_mode",
    "config_file",
    "data_directory",
    "dynamic_library_path",
    "max_replication_slots",
    "max_wal_size",
    "shared_preload_libraries",
    "synchronous_standby_names",
    "wal_level",
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is older than the cutover may take; `seconds` is its age.

    `writes` when it holds or awaits a lock on a moved table that a write takes, `reads` when
    it has any lock there.
    """

    pid: int
    who: str
    seconds: float
    writes: bool
    reads: bool

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.who}, for {self.seconds:.0f} s)"


@dataclass(frozen=True, slots=True)
class Source:
    """The source as it is; `bytes` is None to those who may not know."""

    version_number: int
    version: str
    in_recovery: bool
    system: str
    bytes: int | None
    tablespaces: tuple[str, ...]
    settings: Mapping[str, str]
    senders: int
    slots: int
    lacking: tuple[str, ...]
    standbys: tuple[tuple[str, str], ...]
    """Name and address of each that streams from here."""
    other_slots: tuple[tuple[str, str], ...]
    """Name and kind of slots that are somebody else's."""
    transactions: tuple[Transaction, ...]
    clock: Offset
    sizes: Mapping[str, int | None]
    """Bytes of live and retired schemas; None where a lock forbids to ask."""
    contents: schemas.Contents
    managed: Managed
    tables: int
    """How many have to refuse writes during the cutover; 0 where writes wait."""
    wal: Wal | None
    """None where that cannot be asked: of a standby, or by those who may not."""
    tls: OfSource | None = None
    """None where that cannot be asked by those who may not."""
    events: Events = field(default_factory=Events)
    knows_password: bool = True
    """Whether a passfile has a password for the target, if the source asks for one."""
    problems: tuple[ShardctlError, ...] = ()
    """What making the clone's own files would raise."""

    @property
    def major(self) -> int:
        """The major version."""
        return self.version_number // 10_000

    def number(self, name: str) -> int:
        """Give a parameter that is a number."""
        return int(self.settings[name])


def look(topology: Topology, plan: MovePlan, *, purpose: str) -> Source:
    """Ask the source's server; raises NodeUnavailable and PreflightRefused."""
    node, target = topology.nodes[plan.source], topology.nodes[plan.target]
    owned = [topology.schema(shard) for shard in node.shards]
    moved = {"schemas": list(plan.schemas)}
    try:
        with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
            keep_out(session, seconds=plan.options.max_pause_s)
            row = session.execute(QUERIES["server"]).fetchone()
            used = session.execute(QUERIES["used"], {"purpose": purpose}).fetchone()
            if row is None or used is None:  # pragma: no cover  # one row each, always
                raise AssertionError
            ours = {"slot": plan.slot, "purpose": purpose}
            lacking = rights.lacking(session, plan, owned, topology.database.replication_user)
            older = moved | {"seconds": plan.options.max_pause_s}
            return Source(
                version_number=row[0],
                version=row[1],
                in_recovery=row[2],
                system=row[3],
                bytes=row[4],
                tablespaces=tuple(row[5]),
                settings=dict(
                    session.execute(QUERIES["settings"], {"names": list(_SETTINGS)}).fetchall()
                ),
                senders=used[0],
                slots=used[1],
                lacking=lacking,
                standbys=tuple(session.execute(QUERIES["standbys"], ours).fetchall()),
                other_slots=tuple(session.execute(QUERIES["slots"], ours).fetchall()),
                transactions=tuple(
                    Transaction(*one) for one in session.execute(QUERIES["transactions"], older)
                ),
                clock=clocks.of_server(session),
                sizes=_sizes(session, owned),
                contents=schemas.look(topology, plan, session, purpose=purpose),
                managed=managers.look(node, topology.database, session, purpose=purpose),
                tables=_tables(session, plan),
                wal=None if row[2] or rights.MONITOR in lacking else wal.look(node, session),
                events=Events() if lacking else event_triggers.look(session, plan),
                tls=None if lacking else tls.look_at_source(target, session),
                knows_password=passfile.knows(session, target.host, target.port),
                problems=() if lacking else tuple(_unreadable(topology, plan, session)),
            )
    except psycopg.Error as error:
        raise refused(node, topology.database.user, error) from error


def sizes(topology: Topology, node: NodeName, *, purpose: str) -> dict[ShardId, int]:
    """Measure the shards that live on a node, in bytes.

    Raises NodeUnavailable and PreflightRefused.
    """
    there = topology.nodes[node]
    names = {topology.schema(shard): shard for shard in there.shards}
    try:
        with connect(there, topology.database, purpose=purpose, autocommit=True) as session:
            keep_out(session, seconds=1)
            found = _sizes(session, list(names))
    except psycopg.Error as error:
        raise refused(there, topology.database.user, error) from error
    unknown = [name for name in names if name in found and found[name] is None]
    if unknown:
        raise _locked(node, unknown)
    return {shard: size for name, shard in names.items() if (size := found.get(name)) is not None}


def keep_out(session: Connection, *, seconds: float) -> None:
    """Let a session change nothing and wait for locks no longer than this."""
    session.execute(QUERIES["read_only"], {"lock_timeout": f"{max(1, int(seconds * 1000))}ms"})


def judge(
    topology: Topology, plan: MovePlan, source: Source, *, clones: Collection[str] = ()
) -> Iterator[ShardctlError]:
    """Find what keeps the source's server from being cloned, fenced or left.

    `clones` are the names by which the clones of other moves follow it.
    """
    node = topology.nodes[plan.source]
    yield from _server(node, source)
    yield from replication.judge(plan, source, clones)
    yield from managers.judge(plan, source.managed, topology.database.user)
    yield from rights.judge(node.name, topology.database.user, source.lacking)
    yield from event_triggers.judge(plan, source.events)
    yield from source.problems
    if not source.knows_password:
        yield login.no_password(topology, plan)
    if locked := [s for s in plan.schemas if s in source.sizes and source.sizes[s] is None]:
        yield _locked(node.name, locked)
    writers = [one for one in source.transactions if one.writes]
    if writers:
        yield old_transactions(plan, writers)
    locks = len(plan.schemas) + source.tables
    yield from replication.lock_table(plan.source, source.settings, locks, "the fence")
    yield from schemas.judge(topology, plan, source.contents)


def again(topology: Topology, plan: MovePlan, *, purpose: str) -> list[ShardctlError]:
    """Find what has come about since the preflight and would write behind the fence, or be lost.

    Raises NodeUnavailable and PreflightRefused.
    """
    source = look(topology, plan, purpose=purpose)
    return [
        *replication.standbys(plan, source),
        *managers.unpaused(plan, source.managed),
        *schemas.unfenced(plan, source.contents),
    ]


def old_transactions(plan: MovePlan, found: Sequence[Transaction]) -> SourceUnfit:
    """Refuse transactions for which the cutover would wait in vain."""
    return SourceUnfit(
        plan.source,
        "old_transactions",
        f"transactions on the moved shards are older than --max-pause "
        f"({plan.options.max_pause_s:g} s): {listed([str(one) for one in found])}",
        hint="wait until they have ended, or end them: a cutover would wait for such ones in vain",
    )


def notes(topology: Topology, plan: MovePlan, source: Source) -> Iterator[str]:
    """Say what the operator should know of the source beside refusals."""
    if source.settings.get("archive_mode", "off") != "off":
        yield (
            f"archiving has to be set up on node {plan.target}: it does not write into the "
            f"archive of node {plan.source}"
        )
    yield from managers.notes(plan, source.managed)
    if plan.options.ignore_standby:
        for name, address in source.standbys:
            yield f"standby {name} ({address}) is ignored: promoted now, it knows no fence"
    away = [name for name, kind in source.other_slots if kind == "physical"]
    if away:
        yield f"replication slots whose standbys are away: {listed(away)}"
    logical = [name for name, kind in source.other_slots if kind == "logical"]
    if logical:
        yield f"logical replication slots do not come along: {listed(logical)}"
    readers = [str(one) for one in source.transactions if one.reads and not one.writes]
    if readers:
        yield f"transactions that only read moved shards, and are not waited for: {listed(readers)}"
    retired = len(source.sizes.keys() - {topology.schema(s) for s in topology.owners()})
    if retired:
        yield f"{retired} retired schemas of earlier moves are copied, too: `shardctl prune` first"
    yield from schemas.notes(topology, plan, source.contents)


def _server(node: Node, source: Source) -> Iterator[SourceUnfit]:
    if source.major < OLDEST_MAJOR:
        yield SourceUnfit(
            node.name,
            "too_old",
            f"PostgreSQL {source.version} is too old",
            hint=f"shardctl needs PostgreSQL {OLDEST_MAJOR} or newer",
        )
    if source.in_recovery:
        yield SourceUnfit(
            node.name,
            "standby",
            f"{node.host}:{node.port} is a standby",
            hint="the topology names primaries: give the primary's host and port",
        )
    if source.tablespaces:
        yield SourceUnfit(
            node.name,
            "tablespaces",
            f"it has tablespaces outside its data directory: {listed(source.tablespaces)}",
            hint="a clone has no place for them: move what is in them to pg_default, drop them",
        )


def _unreadable(topology: Topology, plan: MovePlan, session: Connection) -> list[ShardctlError]:
    """Read the files from which the clone's own are made, as the run will."""
    problems: list[ShardctlError] = []
    node, target = topology.nodes[plan.source], topology.nodes[plan.target]
    with collected(problems):
        copying.login_files(node.name, session)
    with collected(problems):
        there = admission.addresses(topology, target, session)
        copying.rules(CloneSource(node, topology.database), session, there)
    return problems


def _tables(session: Connection, plan: MovePlan) -> int:
    if not plan.options.read_only:
        return 0
    return len(session.execute(WRITES["tables"], {"schemas": list(plan.schemas)}).fetchall())


def _sizes(session: Connection, owned: Sequence[str]) -> dict[str, int | None]:
    found = session.execute(STATUS["schemas"], {"schemas": list(owned)})
    return {name: size for name, size, _ in found}


def _locked(node: NodeName, locked: Sequence[str]) -> SourceUnfit:
    return SourceUnfit(
        node,
        "locked",
        f"somebody holds tables locked in {listed(locked)}, against everybody else",
        hint="find them in pg_locks (AccessExclusiveLock) and let them end, then try again",
    )


def reclaimed(topology: Topology, plan: MovePlan, source: Source) -> int:
    """Sum up what prune gives back: moved shards on the source, all others on the target."""
    owned = [*plan.schemas, *planning.leaving(topology, plan)]
    return sum(source.sizes.get(schema) or 0 for schema in owned)
