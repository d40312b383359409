"""The poolers: whether each can keep its clients waiting through the cutover."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import Refused, ShardctlError, named, together
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.moves import plan as planning
from shardctl.moves.plan import PoolerUnfit, collected
from shardctl.moves.preflight import fleet
from shardctl.moves.sub_step import shortest_ms
from shardctl.pgbouncer import apply
from shardctl.pgbouncer.console import Console, PoolerLost, PoolerUnavailable
from shardctl.pgbouncer.guard import Guard, Question, rehearse
from shardctl.postgres import connection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.subject import Context
    from shardctl.pgbouncer.console import Alias
    from shardctl.topology.model import NodeName, Pooler, PoolerName, Topology

MARGIN_S = 5.0
"""How much longer than the budget clients must be able to wait: a guard fires after it."""
ROOM = 100
"""Free client connections of a pooler: with fewer, waiting logins could soon fill it."""


@dataclass(frozen=True, slots=True)
class PoolerFact:
    """A pooler, and what the cutover does with it."""

    name: PoolerName
    paused: tuple[str, ...]
    """The aliases that will be paused."""
    aliases: int
    """How many its file has: they determine what RELOAD costs."""
    clients: int
    """Connected clients."""


@dataclass(slots=True)
class Looked:
    """A pooler as it is; where its console cannot be used, only `problems` are set."""

    pooler: Pooler
    problems: list[ShardctlError] = field(default_factory=list)
    fact: PoolerFact | None = None
    round_trip_ms: float = 0.0
    """The round trip to its console."""
    held: bool = False
    """Whether the whole pooler is paused."""
    staged: Sequence[Path] = ()
    """The files that moves have put beside the pooler's."""
    offered: Mapping[str, Alias] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    busy: frozenset[int] = frozenset()
    """Backends of the source that serve a transaction through an alias to be paused."""


def look(context: Context) -> list[Looked]:
    """Look at all poolers at the same time."""
    found = fanout.run(context.topology.poolers.values(), partial(look_at, context))
    return [outcome.result() for outcome in found]


def look_at(context: Context, pooler: Pooler) -> Looked:
    """Look at one pooler's console, host and file; the result has the errors."""
    topology, plan, purpose = context.topology, context.plan, context.purpose
    looked = Looked(pooler)
    with collected(looked.problems):
        try:
            _look_at_console(topology, plan, looked, purpose=purpose)
        except PoolerLost as error:  # nothing was started
            raise PoolerUnavailable(pooler, f"{error.command}: {error.reason}") from error
        host = host_of(pooler)
        looked.problems += _unasked(topology, plan, pooler)
        looked.staged = apply.staged_there(pooler, host)
        wanted = apply.plan(topology, pooler, host, plan.map_version, force=False, purpose=purpose)
        if wanted.action != "none":
            looked.problems.append(
                PoolerUnfit(
                    pooler.name,
                    "file_outdated",
                    f"{pooler.databases_file} or what it has read of it is not that of map version "
                    f"{plan.map_version}",
                    hint="run `shardctl pgbouncer diff`, then `shardctl pgbouncer apply`",
                )
            )
    return looked


def judge(context: Context) -> Iterator[ShardctlError | str]:
    """Refuse what would give clients errors during the cutover; report what may keep them out."""
    found = context.need(look)
    for looked in found:
        yield from (named(f"pooler {looked.pooler.name}", error) for error in looked.problems)
        # An open move between nodes that are away shows at the poolers only.
        if looked.staged and fleet.away(context):
            known = (entry.move.id for entry in fleet.entries(context))
            if strange := apply.in_no_journal(looked.pooler, looked.staged, known):
                yield apply.FileStaged(looked.pooler, strange[0])
        if looked.fact is not None:
            yield from _unfit(context.plan, looked, looked.fact)
    if not found:
        yield (
            "the topology has no poolers: clients of moved shards get errors from the fence until "
            "they read the map again"
        )


def require_patience(topology: Topology, plan: MovePlan, *, purpose: str) -> None:
    """Check that clients wait as long as this plan's pause, which differs from the checked one.

    Raises PoolerUnfit, PoolerUnavailable, or Problems for several.
    """
    problems: list[ShardctlError] = []
    for pooler in topology.poolers.values():
        with collected(problems), Console(pooler, topology.database, purpose=purpose) as console:
            problems += _impatient(plan, pooler.name, console.config())
    if problems:
        raise together(problems)


def _unasked(topology: Topology, plan: MovePlan, pooler: Pooler) -> list[PoolerUnfit]:
    """Ask as a guard would, a clone by its source; give why that failed."""
    nodes = (plan.source, *([plan.target] if plan.streams else []))
    dsns = {one: connection.from_host(topology.nodes[one], topology.database) for one in nodes}
    return [
        PoolerUnfit(
            pooler.name,
            "guard_login",
            f"a guard on its host could not log in to the target: {why}",
            hint=f"let {topology.database.user} log in from there to source and target "
            "(psql, ~/.pgpass of the pooler's user, database.options, pooler_host, rules)",
        )
        for node, dsn in dsns.items()
        if (why := why_unasked(plan, pooler, dsn, node))
    ]


def why_unasked(plan: MovePlan, pooler: Pooler, dsn: str, node: NodeName) -> str:
    """Ask a node as a guard on a pooler's host would ask the target; return why it failed."""
    guard = Guard(host_of(pooler), plan.id, pooler.databases_file.parent, pooler.os_user)
    try:
        rehearse(guard, Question(dsn, "SELECT true"), asked=f"node {node}")
    except Refused as error:
        return error.message
    return ""


def _look_at_console(topology: Topology, plan: MovePlan, looked: Looked, *, purpose: str) -> None:
    pooler = looked.pooler
    aliases = planning.paused(topology, plan, pooler)
    wanted = set(aliases)
    with Console(pooler, topology.database, purpose=purpose) as console:
        looked.round_trip_ms = shortest_ms(console.version)
        looked.held = console.held()
        looked.offered = console.databases()
        looked.config = console.config()
        looked.busy = frozenset(
            int(server["remote_pid"] or 0)
            for server in console.servers()
            if server["database"] in wanted and server["state"] == "active"
        )
        looked.fact = PoolerFact(
            name=pooler.name,
            paused=aliases,
            aliases=planning.offered(topology, pooler),
            clients=len(console.clients()),
        )


def _unfit(plan: MovePlan, looked: Looked, fact: PoolerFact) -> Iterator[PoolerUnfit | str]:
    """Refuse aliases that are already paused or disabled: the cutover would resume them.

    And parameters with which a pause is not complete, or clients do not wait that long.
    """
    name, config = looked.pooler.name, looked.config
    there = [looked.offered[alias] for alias in fact.paused if alias in looked.offered]
    paused = ["the whole pooler"] if looked.held else [one.name for one in there if one.paused]
    for code, found, verb in (
        ("paused", paused, "RESUME"),
        ("disabled", [one.name for one in there if one.disabled], "ENABLE"),
    ):
        if found:
            yield PoolerUnfit(
                name,
                code,
                f"it has {code}: {listed(found)}",
                hint=f"check that no operator needs this, then run {verb} on its console",
            )
    if config.get("so_reuseport", "0") not in ("0", ""):
        yield PoolerUnfit(
            name,
            "so_reuseport",
            "so_reuseport is on: other processes may share its port, and the cutover would not "
            "pause them",
            hint="run one process with so_reuseport = 0, or list each process as a pooler with a "
            "port of its own",
        )
    if config.get("pool_mode") == "session":
        yield PoolerUnfit(
            name,
            "session_pooling",
            "pool_mode is session: PAUSE would wait until clients disconnect",
            hint="set pool_mode = transaction",
        )
    yield from _impatient(plan, name, config)
    most = config.get("max_client_conn", "")
    if most.isdecimal() and int(most) - fact.clients < ROOM:
        yield (
            f"pooler {name}: only {max(0, int(most) - fact.clients)} client connections are free "
            f"(max_client_conn = {most}): new logins wait during the cutover, and PgBouncer "
            "refuses those beyond the limit"
        )


def _impatient(
    plan: MovePlan, name: PoolerName, config: Mapping[str, str]
) -> Iterator[PoolerUnfit]:
    needed = plan.options.max_pause_s + MARGIN_S
    for key in ("query_wait_timeout", "client_login_timeout"):
        seconds = float(config.get(key) or 0)
        if 0 < seconds < needed:  # 0 is never
            yield PoolerUnfit(
                name,
                key,
                f"{key} is {seconds:g} s: clients would get errors before a cutover of "
                f"{plan.options.max_pause_s:g} s and its guard end",
                hint=f"set it to {needed:g} or more (0: no limit), or give a shorter --max-pause",
            )
