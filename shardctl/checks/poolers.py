"""Poolers that offer something else than the map has, or hold clients up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.checks import poolers_asked
from shardctl.checks import poolers_logins as logins
from shardctl.checks.check import Check
from shardctl.checks.poolers_loaded import connected, left_over, offered
from shardctl.checks.poolers_words import APPLY, RULES, brief, shards_of
from shardctl.pgbouncer import faults, render, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.checks.check import Finding, View
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
            yield RULES.finding(
                "unreachable",
                pooler=name,
                object=f"{pooler.host}:{pooler.port}",
                error=_bare(looked.error, pooler),
                hint=looked.error.hint,
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
        error, hint = _bare(looked.refused, pooler), looked.refused.hint
        yield RULES.finding("refused", pooler=pooler.name, error=error, hint=hint)
    if looked.text is None:
        if looked.refused is None:
            yield RULES.finding("file_missing", pooler=pooler.name, object=path)
        return
    header = render.header(looked.text)
    if looked.text.strip() and (header is None or header.edited):
        actual = "changed by hand" if header else "not written by shardctl"
        yield RULES.finding("file_edited", pooler=pooler.name, object=path, actual=actual)
        return
    # Where no node has the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text != render.databases(topology, pooler, wanted):
        actual, others = _origin(topology, header, wanted)
        yield RULES.finding(
            "file_differs",
            pooler=pooler.name,
            object=path,
            actual=actual,
            of=f" of map version {wanted}" if wanted else "",
            hint=(
                "check that the topology is the newest and that the pooler belongs to it; "
                "then run `shardctl pgbouncer apply --force` to replace the file"
            )
            if others
            else f"run `shardctl pgbouncer diff` to see the changes, then {APPLY}",
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
        yield RULES.finding(
            "paused",
            pooler=pooler.name,
            object="the whole pooler",
            needs="has paused",
            alias="",
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, aliases in (
        ("paused", [one.name for one in ours if one.paused]),
        ("disabled", [one.name for one in ours if one.disabled]),
    ):
        if aliases:
            yield RULES.finding(
                code,
                pooler=pooler.name,
                shards=shards_of(aliases, entries),
                object=brief(aliases),
                needs="needs",
                alias=f' "{aliases[0]}"',
            )


def _retry(pooler: Pooler, looked: Looked) -> Iterator[Finding]:
    """Find what a command left that was killed while it resumed clients."""
    if serving.was_left_short(looked.config):
        yield RULES.finding("login_retry", pooler=pooler.name, object="server_login_retry")


def _pooling(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Report what a pooler pools, and what its clients must do without."""
    ours = {entry.alias for entry in entries}
    # A user may have a mode of its own, which only a pool in use shows.
    pools = [p for p in looked.pools if p["database"] in ours and p.get("pool_mode") == "session"]
    everywhere = looked.config.get("pool_mode") == "session"
    reported = everywhere and isinstance(looked.refused, faults.PoolingUnfit)
    if (everywhere or pools) and not reported:
        users = sorted({pool["user"] or "" for pool in pools})
        of = "" if everywhere else f" for {', '.join(users)}"
        yield RULES.finding("pool_mode", pooler=pooler.name, object="pool_mode", users=of)
    if everywhere:
        return
    number = tuple(map(int, looked.version.split(".")[:2]))
    if number < PREPARED or looked.config.get("max_prepared_statements") == "0":
        lacks = number < PREPARED
        yield RULES.finding(
            "no_prepared_statements",
            pooler=pooler.name,
            object="prepared statements",
            version=looked.version,
            what="none" if lacks else "max_prepared_statements = 0",
            remedy="install 1.21 or newer" if lacks else "raise max_prepared_statements",
        )


def _bare(error: ShardctlError, pooler: Pooler) -> str:
    """Take the pooler's name off an error that is reported with it."""
    message = error.message.removeprefix(f"pooler {pooler.name}").lstrip()
    return message.removeprefix(f"({pooler.host}:{pooler.port})").removeprefix(":").strip()


CHECK = Check(
    RULES,
    "every pooler offers the aliases of the map and serves all its clients",
    judge,
    logins.look,
)
