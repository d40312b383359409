"""Poolers that offer something else than the map has, or hold clients up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.checks.check import ERROR, NOTE, WARNING, Check, Rule, Rules
from shardctl.errors import ShardctlError
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.pgbouncer import apply, render, serving
from shardctl.pgbouncer.console import (
    CommandRefused,
    Console,
    PoolerLost,
    PoolerUnavailable,
    is_of_pooler,
)
from shardctl.state import lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, View
    from shardctl.pgbouncer.console import Alias, Row
    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import Pooler, Topology


_SHOWN = 3
_WIDTH = 8
_LOGIN_S = 5.0
_PATH = "SELECT current_setting('search_path') AS path"
_APPLY = "run `shardctl pgbouncer apply`"
_HELD = "if no operator or move needs it, run {command} on the pooler's console"

RULES = Rules(
    "poolers",
    {
        "login_refused": Rule(
            ERROR,
            "{reason}",
            "role {role} can log in to node {where}",
            "set the role's SCRAM secret on the node to the pooler's "
            "(docs/howto/change-passwords.md), or allow the role in the node's pg_hba.conf",
        ),
        "search_path": Rule(
            ERROR,
            "search_path is {path} on a connection of user {user}",
            "{first}",
            'run RECONNECT "{first}" on the pooler\'s console; then find the client that sends '
            "RESET ALL, DISCARD ALL or SET search_path (docs/poolers.md, drivers)",
        ),
        "unasked": Rule(
            NOTE,
            "cannot log in as {object}: {reason}",
            "a login to each node, and the search_path of each alias in use",
            "add the password of {object} for {address} to ~/.pgpass",
        ),
        "unreachable": Rule(ERROR, "{error}", "a console that answers", "{hint}"),
        "refused": Rule(
            ERROR, "{error}", "a pooler that `shardctl pgbouncer apply` can update", "{hint}"
        ),
        "file_differs": Rule(
            ERROR,
            "{actual}",
            "the file as shardctl writes it{of}",
            "run `shardctl pgbouncer diff` to see the changes, then `shardctl pgbouncer apply`; "
            "with --force it replaces a file that is not its own or is newer",
        ),
        "not_loaded": Rule(
            ERROR,
            "{there}",
            "what the file contains",
            f"{_APPLY} to reload the file; the pooler's log shows why it was not loaded",
        ),
        "paused": Rule(ERROR, "paused: clients wait", "clients are served", _HELD),
        "disabled": Rule(ERROR, "disabled: clients are rejected", "clients are served", _HELD),
        "login_retry": Rule(
            WARNING,
            f"{serving.SHORT_S} s, the value during a move",
            "the server_login_retry of the pooler's configuration",
            "if no move is running, run RELOAD on the pooler's console",
        ),
    },
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user's connection to an alias answered: `path` is its search_path.

    `refused` is the node's word where it refused the login, `untried` why none was made.
    """

    alias: str
    user: str
    path: str | None = None
    refused: str | None = None
    untried: str | None = None


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of a pooler: only `error` where its console cannot be used.

    `refused` is why `apply` would not change it, `text` the file of aliases, `held` whether the
    whole pooler is paused.
    """

    error: ShardctlError | None
    refused: ShardctlError | None = None
    text: str | None = None
    held: bool = False
    offered: Mapping[str, Alias] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    asked: Sequence[Asked] = ()


def look_at(topology: Topology, pooler: Pooler) -> Looked:
    """Ask a pooler's console and read its file; what goes wrong is in the result."""
    purpose = lock.purpose("verify")
    try:
        with Console(pooler, topology.database, purpose=purpose) as console:
            pools, config = console.pools(), console.config()
            held, offered = console.held(), console.databases()
    except ShardctlError as error:
        return Looked(error)
    refused: ShardctlError | None = None
    text: str | None = None
    try:
        host = host_of(pooler)
        text = files.read(host, pooler.databases_file, user=pooler.os_user)
        apply.observe(topology, pooler, host, purpose=purpose)
    except ShardctlError as error:
        refused = error
    asked = _ask(topology, pooler, {} if held else offered, pools)
    return Looked(None, refused, text, held, offered, config, asked)


def _ask(
    topology: Topology, pooler: Pooler, offered: Mapping[str, Alias], pools: Sequence[Row]
) -> list[Asked]:
    """Log in as each application's role to each node with shards, and as the users of pools.

    PgBouncer gives a pool's connection first that was given back last. Aliases that wait or lead
    elsewhere are left out, which other findings report. Passwords are those that libpq finds in a
    passfile.
    """
    usable = [
        one
        for one in render.entries(topology, pooler)
        if one.shards and not apply.differences([one], offered)
        if not (offered[one.alias].paused or offered[one.alias].disabled)
    ]
    wanted: dict[str, dict[str, None]] = defaultdict(dict)
    for alias in {one.node: one.alias for one in usable}.values():
        for role in topology.database.app_roles:
            wanted[role][alias] = None
    schemas = {one.alias for one in usable if one.connect_query is not None}
    for pool in pools:
        in_use = any(int(pool.get(name) or 0) for name in ("sv_idle", "sv_used"))
        if in_use and pool["database"] in schemas:
            wanted[pool["user"]][pool["database"]] = None
    asked = []
    for user, (first, *others) in wanted.items():
        one = partial(_log_in, topology, pooler, user)
        # A user without a password here is refused once and not for each alias.
        asked.append(one(first))
        if asked[-1].untried is None:
            asked += fanout.collect(others, one, width=_WIDTH).every()
    return asked


def _log_in(topology: Topology, pooler: Pooler, user: str, alias: str) -> Asked:
    try:
        with Console(pooler, topology.database, purpose=None, dbname=alias, user=user) as session:
            (row,) = session.execute(_PATH, seconds=_LOGIN_S)
    except (PoolerUnavailable, CommandRefused, PoolerLost) as error:
        said = error.reason.partition("FATAL: ")[2].strip() or error.reason
        # It is lost as of a pooler that restarts.
        if isinstance(error, PoolerLost) or is_of_pooler(said):
            return Asked(alias, user, untried=said)
        return Asked(alias, user, refused=said)
    return Asked(alias, user, row["path"] or "")


def judge(view: View[None]) -> Iterator[Finding]:
    """Judge every pooler by itself."""
    topology = view.topology
    owners = topology.owners()
    maps = [(b.state.map_version, b.map) for b in view.basics.values() if b.state]
    version, newest = max(maps, key=itemgetter(0), default=(0, owners))
    for name, looked in view.poolers.items():
        pooler = topology.poolers[name]
        if looked.error is not None:
            at, error = f"{pooler.host}:{pooler.port}", looked.error
            words = {"error": error.message, "hint": error.hint}
            yield RULES.finding("unreachable", pooler=name, object=at, **words)
            continue
        entries = render.entries(topology, pooler)
        if looked.refused is not None:
            error = looked.refused
            words = {"error": error.message, "hint": error.hint}
            yield RULES.finding("refused", pooler=name, **words)
        if not version or newest == owners:  # or `map` reports that the topology is older
            differs = [*_file(topology, pooler, looked, version)]
            yield from differs or _offered(pooler, looked, entries)
        yield from _held(pooler, looked, entries)
        if serving.was_left_short(looked.config):
            yield RULES.finding("login_retry", pooler=name, object="server_login_retry")
        yield from _logins(view, pooler, looked.asked, entries)


def _file(topology: Topology, pooler: Pooler, looked: Looked, version: int) -> Iterator[Finding]:
    """Compare the file with what rendering gives."""
    header = render.header(looked.text or "")
    # Where no node has the map's version, the file is only compared with its own.
    wanted = version or (header.map_version if header else 0)
    if looked.text is None:
        actual = "absent"
    elif looked.text == render.databases(topology, pooler, wanted):
        return
    elif header is None or header.edited:
        actual = "changed by hand, or not written by shardctl"
    else:
        actual = f"other aliases, of cluster {header.cluster}, map version {header.map_version}"
    if looked.text is not None or looked.refused is None:
        yield RULES.finding(
            "file_differs",
            pooler=pooler.name,
            object=str(pooler.databases_file),
            actual=actual,
            of=f" for map version {wanted}" if wanted else "",
        )


def _offered(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Compare what the pooler has loaded with the aliases that its file should have.

    It is called where the file has them, or could not be read.
    """
    if looked.refused is not None and looked.refused.code in ("other_config", "not_included"):
        return  # it does not read the file
    wrong = [one for one in entries if apply.differences([one], looked.offered)]
    if wrong:
        [there] = apply.differences(wrong[:1], looked.offered)
        aliases = [one.alias for one in wrong]
        yield _of_aliases("not_loaded", pooler, aliases, entries, there=there)


def _held(pooler: Pooler, looked: Looked, entries: Sequence[Entry]) -> Iterator[Finding]:
    """Find aliases whose clients wait, or are turned away."""
    if looked.held:
        yield RULES.finding(
            "paused", pooler=pooler.name, object="the whole pooler", command="RESUME"
        )
    ours = [looked.offered[e.alias] for e in entries if e.alias in looked.offered]
    for code, command, aliases in (
        ("paused", "RESUME", [one.name for one in ours if one.paused]),
        ("disabled", "ENABLE", [one.name for one in ours if one.disabled]),
    ):
        if aliases:
            shown = f'{command} "{aliases[0]}"'
            yield _of_aliases(code, pooler, aliases, entries, command=shown)


def _logins(
    view: View[None], pooler: Pooler, asked: Sequence[Asked], entries: Sequence[Entry]
) -> Iterator[Finding]:
    """Find roles that a node rejects, aliases outside their shard, and users not asked."""
    leads = {entry.alias: entry for entry in entries}
    refused = {(one.user, leads[one.alias].node): one.refused for one in asked if one.refused}
    for (role, node), reason in refused.items():
        if node in view.basics:  # `connection` reports the others
            yield RULES.finding(
                "login_refused",
                pooler=pooler.name,
                shards=sorted({s for one in entries if one.node == node for s in one.shards}),
                object=f"{role} on node {node}",
                reason=reason,
                role=role,
                where=node,
            )
    wrong = {
        one.alias: one
        for one in asked
        if leads[one.alias].connect_query is not None
        and one.path is not None
        and one.path.strip('"') != one.alias
    }
    if wrong:
        aliases = sorted(wrong)
        first = wrong[aliases[0]]
        words = {"path": first.path or "empty", "user": first.user, "first": first.alias}
        yield _of_aliases("search_path", pooler, aliases, entries, **words)
    for user, reason in {one.user: one.untried for one in asked if one.untried}.items():
        address = f"{pooler.host}:{pooler.port}"
        yield RULES.finding(
            "unasked", pooler=pooler.name, object=user, reason=reason, address=address
        )


def _of_aliases(
    code: str, pooler: Pooler, aliases: Sequence[str], entries: Sequence[Entry], **words: str
) -> Finding:
    """Report something of aliases, with the shards to which they lead."""
    shards = sorted({s for entry in entries if entry.alias in aliases for s in entry.shards})
    shown = listed(aliases, most=_SHOWN)
    return RULES.finding(
        code, None, node=None, pooler=pooler.name, shards=shards, object=shown, **words
    )


CHECK = Check(RULES, "every pooler offers the aliases of the map and serves all its clients", judge)
