"""All checks, in the order of the report: look at all nodes in parallel, then judge."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl import fanout
from shardctl.checks import (
    clock,
    connection,
    generator,
    identity,
    ids,
    leftovers,
    map,  # noqa: A004  # the check's name
    migrations,
    poolers,
    settings,
    structure,
)
from shardctl.checks.check import (
    ERROR,
    Finding,
    Place,
    Rule,
    Rules,
    Severity,
    View,
    read_basics,
)
from shardctl.errors import Misused
from shardctl.libpq import reason_of
from shardctl.postgres.connection import NodeUnavailable, Running, connect
from shardctl.state import cluster, keys, ledger, lock
from shardctl.state import migrations as files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.checks.check import Basics, Check
    from shardctl.fanout import Progress
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import Node, NodeName, PoolerName, Topology


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        connection.CHECK,
        identity.CHECK,
        map.CHECK,
        generator.CHECK,
        structure.CHECK,
        migrations.CHECK,
        ids.CHECK,
        clock.CHECK,
        leftovers.CHECK,
        settings.CHECK,
        poolers.CHECK,
    )
}


logger = logging.getLogger(__name__)

_PHASE = "checking structure"
OF_EVERY = {
    "not_examined": Rule(
        ERROR,
        "{reason}",
        "a completed check",
        "fix this first: node {node} could not be checked",
    )
}
"""The rules of every check that has a look of its own."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found, and what it looked at."""

    cluster: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    nodes: int
    shards: int
    poolers: int
    elapsed_ms: int

    def counts(self) -> dict[str, int]:
        """Count findings by severity; all three are counted."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity.value: found[severity] for severity in Severity}

    def ok(self, *, strict: bool = False) -> bool:
        """Return whether there is no error, and with `strict` no warning."""
        counts = self.counts()
        return counts["error"] == 0 and not (strict and counts["warning"])

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "format": 1,
            "cluster": self.cluster,
            "ok": self.ok(),
            "counts": self.counts(),
            "examined": {"nodes": self.nodes, "shards": self.shards, "poolers": self.poolers},
            "elapsed_ms": self.elapsed_ms,
            "checks": list(self.checks),
            "findings": [finding.as_json() for finding in self.findings],
        }


@dataclass(slots=True)
class Looked:
    """What was seen of one node: a finding instead of basics where it could not be reached.

    `seen` holds what each check's look gave, by the check's name.
    """

    basics: Basics | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scope:
    """What is examined: `names` are the checks that were asked for, none stands for all."""

    topology: Topology
    migrations: Sequence[Migration]
    names: tuple[str, ...]
    deep: bool

    @property
    def checks(self) -> list[Check]:
        """Give the checks to run, in the registry's order."""
        return [one for one in CHECKS.values() if not self.names or one.name in self.names]


def verify(
    topology: Topology,
    names: Sequence[str],
    *,
    deep: bool,
    progress: Progress,
    notice: Callable[[str], None] = logger.info,
) -> Report:
    """Examine the fleet with the checks of these names; none stands for all.

    A node that cannot be reached is a finding, and the rest are examined all the same; of a
    server that is another node's, nothing but that is reported. Ctrl-C cancels what runs, which
    `notice` says, and is raised then. Raises check_not_found, and what reading the migrations
    raises.
    """
    running = Running(notice)
    began = time.monotonic()
    wanted = scope(topology, names, deep=deep)
    outcomes = fanout.run(
        topology.nodes.values(),
        lambda node: _look(wanted, node, progress, running),
        cancel=running.cancel,
    )
    chosen = topology.poolers if poolers.CHECK in wanted.checks else {}
    asked = fanout.collect(chosen.values(), partial(poolers.look_at, topology)).every()
    pooled = dict(zip(chosen, asked, strict=True))
    looked = {outcome.item.name: outcome.result() for outcome in outcomes}
    report = judge(wanted, looked, pooled)
    return replace(report, elapsed_ms=round((time.monotonic() - began) * 1000))


def scope(topology: Topology, names: Sequence[str], *, deep: bool) -> Scope:
    """Read the migrations; raises check_not_found, and what reading migrations and keys raises."""
    for name in names:
        if name not in CHECKS:
            raise Misused(
                "check_not_found",
                f"unknown check {name!r}",
                hint=f"choose from {', '.join(CHECKS)} (see `shardctl verify --list`)",
            )
    found = files.read(topology.database.migrations)
    keys.key_columns(found)  # a malformed line is reported before anything is contacted
    return Scope(topology, found, tuple(names), deep)


def judge(
    scope: Scope,
    looked: Mapping[NodeName, Looked],
    pooled: Mapping[PoolerName, poolers.Looked],
) -> Report:
    """Let every check judge what was seen; pure. The report's time is 0."""
    topology = scope.topology
    basics = {name: one.basics for name, one in looked.items() if one.basics is not None}
    strangers = identity.strangers(topology, basics)
    known = {name: one for name, one in basics.items() if name not in strangers}
    moves = ledger.entries(copy for one in basics.values() for copy in one.journal)
    findings = [finding for one in looked.values() for finding in one.findings]
    for check in CHECKS.values():
        of_all = check in (connection.CHECK, identity.CHECK)
        if check not in scope.checks and check is not identity.CHECK:
            continue
        view: View[Any] = View(
            topology=topology,
            migrations=scope.migrations,
            basics=basics if of_all else known,
            seen={n: looked[n].seen[check.name] for n in known if check.name in looked[n].seen},
            deep=scope.deep,
            poolers=pooled,
            moves=moves,
        )
        findings += check.judge(view)
    if scope.names:
        # Only the chosen checks are reported, and what could not be examined.
        unread = [f for f in findings if f.severity is Severity.error and f.code != "differs"]
        findings = [f for f in findings if f.check in scope.names or f in unread]
    return Report(
        cluster=topology.cluster,
        checks=tuple(check.name for check in scope.checks),
        findings=tuple(findings),
        nodes=len(known),
        shards=sum(len(one.live(topology, topology.nodes[n])) for n, one in known.items()),
        poolers=sum(one.error is None for one in pooled.values()),
        elapsed_ms=0,
    )


def _look(scope: Scope, node: Node, progress: Progress, running: Running) -> Looked:
    """Ask one node, over a session of its own, which may only read."""
    topology, purpose, found = scope.topology, lock.purpose("verify"), Looked()
    progress.expect(node.name, _PHASE, len(scope.checks) + 1, "checks")
    try:
        session = connect(node, topology.database, purpose=purpose, autocommit=True, observing=True)
        with session, running.statement(session):
            session.execute("SET default_transaction_read_only TO on")
            # The DDL of another session must not hold it up, nor it the sessions that queue behind.
            session.execute("SET lock_timeout TO '3s'")
            found.basics = read_basics(session, topology, node)
            progress.advance(node.name)
            live = found.basics.live(topology, node)
            given = scope.migrations, node, session, found.basics, live, scope.deep
            place = Place(topology, *given, progress, found.findings)
            _ask(scope, place, found, running)
    except NodeUnavailable as error:
        found.findings.append(connection.unreachable(node, error))
    except psycopg.Error as error:
        found.findings.append(_not_examined(connection.CHECK, node, reason_of(error)))
    except cluster.SchemaTaken as error:
        found.findings.append(_not_examined(identity.CHECK, node, error.message))
    finally:
        progress.end(node.name)
    return found


def _ask(scope: Scope, place: Place, found: Looked, running: Running) -> None:
    """Let every check look at a node; of a server that is another node's, none looks."""
    node, progress, basics = place.node, place.progress, place.basics
    strange = basics.state is None or identity.strangers(scope.topology, {node.name: basics})
    for number, check in enumerate(scope.checks, 1):
        if running.stopped.is_set() or place.connection.closed:
            break
        if check.look is not None and not strange:
            try:
                found.seen[check.name] = check.look(place)
            except psycopg.Error as error:
                found.findings.append(_not_examined(check, node, reason_of(error)))
        if scope.deep and check is ids.CHECK:  # it had a phase of its own
            progress.expect(node.name, _PHASE, len(scope.checks) + 1, "checks")
            progress.advance(node.name, number)
        progress.advance(node.name)


def _not_examined(check: Check, node: Node, reason: str) -> Finding:
    return Rules(check.name, OF_EVERY).finding("not_examined", node=node.name, reason=reason)
