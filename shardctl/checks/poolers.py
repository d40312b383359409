"""Poolers that offer something else than the map has, or hold clients up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.checks import poolers_asked
from shardctl.checks import poolers_logins as logins
from shardctl.checks.check import Check
from shardctl.checks.findings import Finding, Severity
from shardctl.checks.poolers_loaded import APPLY, connected, left_over, offered
from shardctl.checks.poolers_words import NAME, brief, shards_of
from shardctl.pgbouncer import faults, render, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.checks.check import View
    from shardctl.checks.poolers_logins import Secrets
    from shardctl.checks.poolers_look import Looked
    from shardctl.errors import ShardctlError
    from shardctl.pgbouncer.render import Entry, Header
    from shardctl.topology.model import NodeName, Pooler, ShardId, Topology

PREPARED = (1, 21)
"""The first PgBouncer that keeps prepared statements in transaction pooling."""


def judge(view: View[Secrets]) -> Iterator[Finding]:
    """Judge every pooler by itself."""
    version, topology = _truth(view)
    for name, looked in view.poolers.items():
        pooler = topology.poolers[name]
        if looked.error is not None:
            yield Finding(
                NAME,
                "unreachable",
                Severity.error,
                actual=_bare(looked.error, pooler),
                expected="a console that answers",
                hint=looked.error.hint,
                pooler=name,
                object=f"{pooler.host}:{pooler.port}",
            )
            continue
        entries = render.entries(topology, pooler)
        yield from _file(topology, pooler, looked, version)
        yield from offered(pooler, looked, entries)
        yield from left_over(topology, pooler, looked, entries)
        yield from _held(pooler, looked, entries)
        yield from _retry(pooler, looked)
        yield from connected(topology, pooler, looked, entries)
        yield from poolers_asked.judge(pooler, looked.asked, entries)
        yield from _pooling(pooler, looked, entries)
        yield from logins.judge(view, pooler, looked, entries)


def _truth(view: View[Secrets]) -> tuple[int | None, Topology]:
    """Give the newest map's version, None where no node has one, and the owners of the shards.

    That the topology is older than the map is the finding of `map`; poolers follow the map.
    """
    states = [(b.state.map_version, b.map) for b in view.basics.values() if b.state]
    version = max((number for number, _ in states), default=0)
    topology = view.topology
    owners = topology.owners()
    newest, *others = [found for number, found in states if number == version] or [owners]
    whole = newest.keys() == owners.keys() and topology.nodes.keys() >= set(newest.values())
    if whole and all(one == newest for one in others):
        owned: dict[NodeName, list[ShardId]] = defaultdict(list)
        for shard in sorted(newest):
            owned[newest[shard]].append(shard)
        nodes = {n: replace(one, shards=tuple(owned[n])) for n, one in topology.nodes.items()}
        topology = replace(topology, nodes=nodes)
    return version or None, topology


def _file(
    topology: Topology, pooler: Pooler, looked: Looked, version: int | None
) -> Iterator[Finding]:
    """Compare the file with what rendering gives."""
    path = str(pooler.databases_file)
    if looked.refused is not None:
        yield Finding(
            NAME,
            "refused",
            Severity.error,
            actual=_bare(looked.refused, pooler),
            expected=f"a pooler that {APPLY} can update",
            hint=looked.refused.hint,
            pooler=pooler.name,
        )
    if looked.text is None:
        if looked.refused is None:
            yield Finding(
                NAME, "file_missing", Severity.error,
                actual="absent", expected="the file of aliases", hint=APPLY,
                pooler=pooler.name, object=path,
            )  # fmt: skip
        return
    header = render.header(looked.text)
    if looked.text.strip() and (header is None or header.edited):
        yield Finding(
            NAME,
            "file_edited",
            Severity.error,
            actual="changed by hand" if header else "not written by shardctl",
            expected="the file as shardctl wrote it",
            hint="run `shardctl pgbouncer diff` to see the changes; `shardctl pgbouncer "
            "apply --force` replaces the file",
            pooler=pooler.name,
            object=path,
        )
        return
    # Where no node has the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text != render.databases(topology, pooler, wanted):
        actual, others = _origin(topology, header, wanted)
        yield Finding(
            NAME,
            "file_differs",
            Severity.error,
            actual=actual,
            expected=f"the aliases of map version {wanted}" if wanted else "the aliases",
            hint=(
                "check that the topology is the newest and that the pooler belongs to it; "
                "then run `shardctl pgbouncer apply --force` to replace the file"
            )
            if others
            else f"run `shardctl pgbouncer diff` to see the changes, then {APPLY}",
            pooler=pooler.name,
            object=path,
        )


def _origin(topology: Topology, header: Header | None, wanted: int) -> tuple[str, bool]:
    """Describe what a differing file is of, and whether that is another cluster or map."""
    if header is None:
        return "empty", False
    if header.cluster != topology.cluster:
        return f"of cluster {header.cluster}", True
    if header.map_version != wanted:
        return f"of map version {header.map_version}", header.map_version > wanted
    return "other aliases", False


def _held(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients wait, or are turned away."""
    if looked.held:
        yield Finding(
            NAME,
            "paused",
            Severity.error,
            actual="paused: clients wait",
            expected="clients are served",
            hint="if no operator or move has paused it, run RESUME on the pooler's console",
            pooler=pooler.name,
            object="the whole pooler",
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, aliases, verb in (
        ("paused", [one.name for one in ours if one.paused], "RESUME"),
        ("disabled", [one.name for one in ours if one.disabled], "ENABLE"),
    ):
        if aliases:
            yield Finding(
                NAME,
                code,
                Severity.error,
                actual="paused: clients wait"
                if code == "paused"
                else "disabled: clients are rejected",
                expected="clients are served",
                hint=f'if no operator or move needs it, run {verb} "{aliases[0]}" on the '
                "pooler's console",
                pooler=pooler.name,
                shards=shards_of(aliases, entries),
                object=brief(aliases),
            )


def _retry(pooler: Pooler, looked: Looked) -> Iterator[Finding]:
    """Find what a command left that was killed while it resumed clients."""
    if serving.was_left_short(looked.config):
        yield Finding(
            NAME,
            "login_retry",
            Severity.warning,
            actual=f"{serving.SHORT_S} s, the value during a move",
            expected="the server_login_retry of the pooler's configuration",
            hint="if no move is running, run RELOAD on the pooler's console",
            pooler=pooler.name,
            object="server_login_retry",
        )


def _pooling(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report what a pooler pools, and what its clients must do without."""
    ours = {entry.alias for entry in entries}
    # A user may have a mode of its own, which only a pool in use shows.
    pools = [p for p in looked.pools if p["database"] in ours and p.get("pool_mode") == "session"]
    everywhere = looked.config.get("pool_mode") == "session"
    reported = everywhere and isinstance(looked.refused, faults.PoolingUnfit)
    if (everywhere or pools) and not reported:
        users = sorted({pool["user"] or "" for pool in pools})
        yield Finding(
            NAME,
            "pool_mode",
            Severity.warning,
            actual="session" if everywhere else f"session for {', '.join(users)}",
            expected="transaction",
            hint="set pool_mode = transaction: with session pooling a move waits for "
            "sessions to end, not only transactions",
            pooler=pooler.name,
            object="pool_mode",
        )
    if everywhere:
        return
    number = tuple(map(int, looked.version.split(".")[:2]))
    if number < PREPARED or looked.config.get("max_prepared_statements") == "0":
        lacks = number < PREPARED
        yield Finding(
            NAME,
            "no_prepared_statements",
            Severity.note,
            actual=f"PgBouncer {looked.version} "
            + ("has none" if lacks else "has max_prepared_statements = 0"),
            expected="protocol-level prepared statements",
            hint="disable prepared statements in clients (psycopg: prepare_threshold=None), or "
            + ("install 1.21 or newer" if lacks else "raise max_prepared_statements"),
            pooler=pooler.name,
            object="prepared statements",
        )


def _bare(error: ShardctlError, pooler: Pooler) -> str:
    """Take the pooler's name off an error that is reported with it."""
    message = error.message.removeprefix(f"pooler {pooler.name}").lstrip()
    return message.removeprefix(f"({pooler.host}:{pooler.port})").removeprefix(":").strip()


CHECK = Check(
    NAME,
    "every pooler offers the aliases of the map and serves all its clients",
    judge,
    logins.look,
)
