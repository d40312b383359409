"""Why a pooler must not be changed, or did not take what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl import errors
from shardctl.errors import Incomplete, Refused, ShardctlError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.topology.model import PoolerName


class PoolerRefused(ShardctlError):
    """Base of what is wrong with one pooler before anything was changed."""

    def __init__(self, pooler: PoolerName, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}: {what}", hint=hint)


def named(pooler: PoolerName, error: ShardctlError) -> ShardctlError:
    """Give an error that names the pooler, itself if it does."""
    return errors.named(f"pooler {pooler}", error)


class PoolingUnfit(PoolerRefused):
    """A way of pooling in which a shard's alias would lose its search_path."""

    def __init__(self, pooler: PoolerName, setting: str) -> None:
        super().__init__(
            pooler,
            f"with {setting}, the second client of a connection would not be in its shard",
            hint="set pool_mode = transaction there (and server_reset_query_always = 0), or "
            "offer only aliases of nodes (`aliases: [node]`)",
        )


def not_pooler_admin(pooler: PoolerName, user: str, admins: str) -> Refused:
    """Report a user who may look at the console and change nothing."""
    return Refused(
        "not_pooler_admin",
        f"pooler {pooler}: {user} is not in its admin_users ({admins or 'empty'})",
        hint=f"add {user} to admin_users of the pooler, or set another admin_user",
    )


class OtherConfig(PoolerRefused):
    """A pooler that runs with another file than the topology has: RELOAD would change nothing."""

    def __init__(self, pooler: PoolerName, runs_with: str, config: Path) -> None:
        super().__init__(
            pooler,
            f"it runs with {runs_with}, not with {config}: a RELOAD would have no effect",
            hint="correct `config` of the pooler in the topology, or its host and port",
        )


class NotIncluded(PoolerRefused):
    """A configuration that does not include, as its last line, the file that shardctl owns."""

    def __init__(self, pooler: PoolerName, config: Path, databases_file: Path) -> None:
        super().__init__(
            pooler,
            f"the last line of {config} does not include {databases_file}, so the pooler would "
            "not offer its aliases",
            hint=f"make this the last line of {config}: %include {databases_file}",
        )


def pooler_file_edited(pooler: PoolerName, path: Path, *, ours: bool) -> Refused:
    """Report a file that is not what shardctl wrote."""
    what = "was changed by hand" if ours else "was not written by shardctl"
    return Refused(
        "pooler_file_edited",
        f"pooler {pooler}: {path} {what}",
        hint="run `shardctl pgbouncer diff` to see what --force would replace; move your "
        "own databases to another file",
    )


def pooler_file_of_other(pooler: PoolerName, path: Path, what: str) -> Refused:
    """Report a file that belongs to another cluster, or to a newer map than the databases have."""
    return Refused(
        "pooler_file_of_other",
        f"pooler {pooler}: {path} belongs to {what}",
        hint="check that the topology is the newest and that this pooler belongs to it; "
        "--force replaces the file",
    )


def reload_rejected(pooler: PoolerName, lines: Sequence[str], *, restored: bool) -> Refused:
    """Report a configuration that the pooler did not take.

    `restored` when a file was written and the one before is in place again.
    """
    listed = "".join(f"\n  {line}" for line in lines)
    what = (
        "the new configuration; shardctl has restored the old one"
        if restored
        else "its configuration"
    )
    return Refused(
        "reload_rejected",
        f"pooler {pooler}: PgBouncer rejected {what}{listed}",
        hint="fix the cause in its log, then run the command again",
    )


def pooler_file_not_restored(pooler: PoolerName, path: Path, lines: Sequence[str]) -> Incomplete:
    """Report a pooler that took neither the new configuration nor the old one again."""
    listed = "".join(f"\n  {line}" for line in lines)
    return Incomplete(
        "pooler_file_not_restored",
        f"pooler {pooler}: PgBouncer rejected the new configuration, and could not be "
        f"restored to the old one{listed}",
        hint=f"check {path} and the pooler's log, then run the command again",
    )


# PgBouncer sends SQLSTATE 08P01 with almost every error, and libpq has none of a login that failed:
# what is decided by texts is decided by those below.
NOT_PAUSED = "is not paused"
"""The console's answer to RESUME of an alias that was not paused."""
HELD = "already"
"""Its answer to PAUSE of the console itself while the whole pooler is paused or suspended."""
NOT_LOADED = "config file loading failed"
"""What its log has of a RELOAD that failed; before 1.25, the answer has nothing."""
_OF_POOLER = (
    "auth failed",
    "authentication failed",
    "no such user",
    "no such database",
    "no more connections allowed",
    "login rejected",
    "not allowed",
    "unsupported",
    "TLS",
    "timeout",
    "no response",
    "no password",
)


def is_of_pooler(reason: str) -> bool:
    """Return whether this is PgBouncer's message about the client, not about a node.

    >>> is_of_pooler("SASL authentication failed"), is_of_pooler("no such user: app")
    (True, True)
    >>> is_of_pooler('password authentication failed for user "app"')
    False
    """
    return " for user " not in reason and any(word in reason for word in _OF_POOLER)
