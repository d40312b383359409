"""What is found of poolers, and the words that the findings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, NOTE, WARNING, Rule, Rules
from shardctl.meter import listed
from shardctl.pgbouncer import serving

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.pgbouncer.render import Entry
    from shardctl.topology.model import ShardId

_SHOWN = 3
APPLY = "`shardctl pgbouncer apply`"
PAGE = "docs/howto/change-passwords.md"

RULES = Rules(
    "poolers",
    {
        "unreachable": Rule(ERROR, "{error}", "a console that answers", "{hint}"),
        "refused": Rule(ERROR, "{error}", f"a pooler that {APPLY} can update", "{hint}"),
        "file_missing": Rule(ERROR, "absent", "the file of aliases", APPLY),
        "file_edited": Rule(
            ERROR,
            "{actual}",
            "the file as shardctl wrote it",
            "run `shardctl pgbouncer diff` to see the changes; `shardctl pgbouncer apply --force` "
            "replaces the file",
        ),
        "file_differs": Rule(ERROR, "{actual}", "the aliases{of}", "{hint}"),
        "not_loaded": Rule(
            ERROR,
            "{there}",
            "what the file contains",
            f"run {APPLY} to reload the file; the pooler's log shows why it was not loaded",
        ),
        "left_over": Rule(
            ERROR,
            "offered, but no file contains it",
            "only aliases of the file",
            f"run {APPLY} to reload the file",
        ),
        "paused": Rule(
            ERROR,
            "paused: clients wait",
            "clients are served",
            "if no operator or move {needs} it, run RESUME{alias} on the pooler's console",
        ),
        "disabled": Rule(
            ERROR,
            "disabled: clients are rejected",
            "clients are served",
            "if no operator or move {needs} it, run ENABLE{alias} on the pooler's console",
        ),
        "login_retry": Rule(
            WARNING,
            f"{serving.SHORT_S} s, the value during a move",
            "the server_login_retry of the pooler's configuration",
            "if no move is running, run RELOAD on the pooler's console",
        ),
        "wrong_server": Rule(
            ERROR,
            "connections to {there}",
            "connections to node {owner}, which owns the shards",
            'run RECONNECT "{first}" on the pooler\'s console',
        ),
        "login_refused": Rule(
            ERROR, "{actual}", "role {role} can log in to node {where}", "{hint}"
        ),
        "secrets_differ": Rule(
            WARNING,
            "nodes {nodes} have different SCRAM secrets",
            "the same secret on all nodes: PgBouncer keeps only one",
            f"set the role's SCRAM secret on all nodes to the pooler's ({PAGE})",
        ),
        "search_path": Rule(
            ERROR,
            "search_path is {path} on {count} of {all} connections of user {user}",
            "{first}",
            'run RECONNECT "{first}" on the pooler\'s console; then find the client that sends '
            "RESET ALL, DISCARD ALL or SET search_path (docs/poolers.md, drivers)",
        ),
        "search_path_unasked": Rule(
            NOTE,
            "the search_path of {count} of {all} idle connections could not be read",
            "the search_path of each idle connection",
            "run RECONNECT with the alias's name on the pooler's console: it replaces these "
            "connections",
        ),
        "search_path_unknown": Rule(
            NOTE,
            "cannot read the search_path as user {user}: {error}",
            "the search_path of each alias in use",
            "allow shardctl to log in to {address} as {user} (add a line to ~/.pgpass)",
        ),
        "login_untried": Rule(
            NOTE,
            "not tested: {why}",
            "role {object} can log in to {nodes}",
            f"add its password for {{address}} to your passfile ({PAGE})",
        ),
        "pool_mode": Rule(
            WARNING,
            "session{users}",
            "transaction",
            "set pool_mode = transaction: with session pooling a move waits for sessions to end, "
            "not only transactions",
        ),
        "no_prepared_statements": Rule(
            NOTE,
            "PgBouncer {version} has {what}",
            "protocol-level prepared statements",
            "disable prepared statements in clients (psycopg: prepare_threshold=None), or {remedy}",
        ),
    },
)


def shards_of(aliases: Iterable[str], entries: Sequence[Entry]) -> tuple[ShardId, ...]:
    """List the shards to which aliases lead."""
    named = set(aliases)
    return tuple(sorted({s for entry in entries if entry.alias in named for s in entry.shards}))


def brief(aliases: Sequence[str]) -> str:
    """Name the first few of aliases."""
    return listed(aliases, most=_SHOWN)
