"""Why a pooler must not be changed, or did not take what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, Unfinished

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardctl.topology.model import PoolerName

_SHOWN = 5


class PoolerRefused(ShardctlError):
    """Base of what is wrong with one pooler before anything was changed."""

    def __init__(self, pooler: PoolerName, what: str, *, hint: str) -> None:
        super().__init__(f"pooler {pooler}: {what}", hint=hint)
        self.pooler = pooler


class PoolerFailed(ShardctlError):
    """What went wrong with one pooler, told with its name."""

    def __init__(self, pooler: PoolerName, cause: ShardctlError) -> None:
        super().__init__(f"pooler {pooler}: {cause.message}", hint=cause.hint)
        self.exit_code = cause.exit_code
        self.pooler = pooler


def named(pooler: PoolerName, error: ShardctlError) -> ShardctlError:
    """Give an error that names the pooler, itself if it does."""
    if error.message.startswith((f"pooler {pooler}:", f"pooler {pooler} ")):
        return error
    return PoolerFailed(pooler, error)


class PoolerTooOld(PoolerRefused):
    """A version of PgBouncer before the oldest that shardctl knows."""

    def __init__(self, pooler: PoolerName, version: str, oldest: str) -> None:
        super().__init__(
            pooler, f"PgBouncer {version} is too old", hint=f"install {oldest} or newer there"
        )


class NotAdmin(PoolerRefused):
    """A user who may look at the console and change nothing."""

    def __init__(self, pooler: PoolerName, user: str, admins: str) -> None:
        super().__init__(
            pooler,
            f"{user} is no admin there (admin_users = {admins or 'nobody'})",
            hint=f"add {user} to admin_users of the pooler, or name another admin_user",
        )


class PoolingUnfit(PoolerRefused):
    """A way of pooling in which a shard's alias would lose its search_path."""

    def __init__(self, pooler: PoolerName, setting: str) -> None:
        super().__init__(
            pooler,
            f"with {setting}, the second client of a connection would not be in its shard",
            hint="set pool_mode = transaction there (and server_reset_query_always = 0), "
            "or let the pooler offer `aliases: [node]`",
        )


class ResetUnfit(PoolerRefused):
    """A pooler that should give connections their search_path back, and is not set up for it."""

    def __init__(self, pooler: PoolerName, settings: Mapping[str, str]) -> None:
        lines = "".join(f"\n    {key} = {value}" for key, value in settings.items())
        super().__init__(
            pooler,
            "survive_reset is true, and PgBouncer does not run shardctl's server_reset_query",
            hint="set these in section [pgbouncer] of its configuration, and RELOAD:" + lines,
        )


class OtherConfig(PoolerRefused):
    """A pooler that runs with another file than the topology says: RELOAD would change nothing."""

    def __init__(self, pooler: PoolerName, runs_with: str, config: Path) -> None:
        super().__init__(
            pooler,
            f"it runs with {runs_with}, not with {config}: a RELOAD would not see any change",
            hint="correct `config` of the pooler in the topology, or its host and port",
        )


class NotIncluded(PoolerRefused):
    """A configuration that does not include the file that shardctl owns."""

    def __init__(self, pooler: PoolerName, config: Path, databases_file: Path) -> None:
        super().__init__(
            pooler,
            f"{config} does not include {databases_file}, so it would offer none of the aliases",
            hint=f"add a line of its own at its end: %include {databases_file}",
        )


class IncludeMisplaced(PoolerRefused):
    """A setting behind the include, which PgBouncer would take for a database."""

    def __init__(self, pooler: PoolerName, where: str, key: str, databases_file: Path) -> None:
        super().__init__(
            pooler,
            f"{where}: {key} comes after the include of {databases_file}, which ends in section "
            "[databases]: PgBouncer would take it for a database",
            # A second [pgbouncer] would set all that the first has back to the defaults.
            hint=f"move the line %include {databases_file} to the end of the configuration",
        )


class AliasTaken(PoolerRefused):
    """Aliases that the operator's own configuration offers already, for something else."""

    def __init__(self, pooler: PoolerName, taken: Sequence[tuple[str, str]]) -> None:
        shown = ", ".join(f"{alias} ({where})" for alias, where in taken[:_SHOWN])
        more = f" and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
        super().__init__(
            pooler,
            f"the configuration has databases of its own with the names of aliases: {shown}{more}",
            hint="rename them there, or remove them: PgBouncer would take whichever comes last",
        )
        self.taken = tuple(taken)


class FileEdited(PoolerRefused):
    """A file that is not what shardctl wrote."""

    def __init__(self, pooler: PoolerName, path: Path, *, ours: bool) -> None:
        what = "was changed by hand" if ours else "was not written by shardctl"
        super().__init__(
            pooler,
            f"{path} {what}",
            hint="`shardctl pgbouncer diff` shows what --force would replace; databases of your "
            "own belong into another file",
        )


class FileOfOther(PoolerRefused):
    """A file that belongs to another cluster, or to a newer map than the databases have."""

    def __init__(self, pooler: PoolerName, path: Path, what: str) -> None:
        super().__init__(
            pooler,
            f"{path} is of {what}",
            hint="check the topology: is it this pooler's, and the newest? --force replaces it",
        )


class SameFile(PoolerRefused):
    """Two poolers that would write one file."""

    def __init__(self, pooler: PoolerName, other: PoolerName, path: str) -> None:
        super().__init__(
            pooler,
            f"its file of aliases is pooler {other}'s too: {path}",
            hint="give each pooler a databases_file of its own",
        )


class ReloadRejected(ShardctlError):
    """A configuration that the pooler did not take.

    `restored` when a file was written and the one before is in place again.
    """

    def __init__(self, pooler: PoolerName, lines: Sequence[str], *, restored: bool) -> None:
        said = "".join(f"\n  {line}" for line in lines)
        what = "the new configuration; the old one is back" if restored else "its configuration"
        super().__init__(
            f"pooler {pooler}: it did not take {what}{said}",
            hint="mend what its log names and run the command again",
        )
        self.pooler = pooler
        self.lines = tuple(lines)


class NotRestored(Unfinished):
    """A pooler that did not take the new configuration, nor was brought back to the old one."""

    def __init__(self, pooler: PoolerName, path: Path, lines: Sequence[str]) -> None:
        said = "".join(f"\n  {line}" for line in lines)
        super().__init__(
            f"pooler {pooler}: it did not take the new configuration, "
            f"and was not brought back to the old one{said}",
            hint=f"look at {path} and the pooler's log, then run the command again",
        )
        self.pooler = pooler
        self.lines = tuple(lines)
