"""The guard: a process on a pooler's host that resumes paused aliases unless it is disarmed."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from shardctl.errors import Incomplete, Refused, ShardctlError
from shardctl.hosts import scripts
from shardctl.hosts.host import CommandFailed, CommandTimedOut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host

PATIENCE = 20.0
"""Seconds that `disarm` waits for a guard that fires; longer than a question takes."""

_ARM_S = 60.0
_REHEARSAL_S = 10.0
_LINES = 5
_BUSY = 76  # what the script ends with where a guard has fired and goes on
_HINT_QUESTION = (
    "if shardctl dies after a cutover, the guard asks the target whether it owns the "
    "shards: allow database.user to log in from the pooler's host (the clone uses the "
    "source's pg_hba.conf), with a password in ~/.pgpass or the passfile there"
)
_HINT = (
    "fix the cause above on that host: the guard's user has to be able to write there, and to log "
    "in to the console from there (its address, admin_users, ~/.pgpass or the passfile there)"
)


class Question(NamedTuple):
    """What a guard asks a database before it lets a staged file take its place.

    `query` gives one boolean; `dsn` is libpq's connection string, without a password. No
    answer within 3 s, and anything but true, counts as false. A guard that got no true answer
    resumes its aliases, and asks again every second for ten minutes.
    """

    dsn: str
    query: str


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard on a host; made by hand, without `owner`, it names whichever has that name."""

    host: Host
    name: str
    parent: Path
    user: str | None = None
    owner: str | None = None
    """Distinguishes it from a later one of its name, armed after this one had fired."""

    @property
    def directory(self) -> Path:
        """Its own directory on the host, with its log."""
        return self.parent / f"guard-{self.name}"


def arm(
    guard: Guard,
    *,
    console: str,
    aliases: Sequence[str],
    after_s: float,
    question: Question | None = None,
    staged: tuple[Path, Path] | None = None,
    retry: str = "",
) -> Guard:
    """Start a guard on a pooler's host; it counts when this returns the guard, which has an owner.

    `console` is libpq's connection string, without a password, of the pooler's console as
    that host sees it; passwords come from the ~/.pgpass of the guard's user there.
    After `after_s` it asks the question. If the answer is true, or without a question, it puts the
    first `staged` file into the place of the second, beside which it lies. Then it reloads the
    pooler and resumes only these aliases. If the answer was not true, it asks again until it is,
    and then does the same.
    `retry` is the pooler's `server_login_retry`, a number, which is shorter for a moment then;
    without it, it stays as it is. Raises guard_refused, and leaves nothing behind.
    """
    guard = replace(guard, owner=secrets.token_hex(8))
    words = [f"{after_s:.3f}", str(len(aliases)), console, *(question or ("", ""))]
    words += [*map(str, staged or ("", "")), retry]
    try:
        _run(guard, "arm", *words, text="".join(f"{a}\n" for a in aliases), timeout=_ARM_S)
    except BaseException:  # also killed half-way, so that the script could not clear up
        # It would end by itself, having paused nothing: the first error is the one to report.
        with suppress(ShardctlError):
            disarm(guard, patience_s=0)
        raise
    return guard


def rehearse(guard: Guard, question: Question, *, asked: str = "the target") -> bool:
    """Ask the question as this guard would, and give the answer.

    `asked` is how an error names who is asked.
    Raises guard_refused where there is none: a guard would take that for false.
    """
    argv = ["psql", "-X", "-w", "-q", "-A", "-t", "-d", question.dsn, "-c", question.query]
    kept = {"PGCONNECT_TIMEOUT": "2", "PGPASSWORD": "", "PGOPTIONS": "", "LC_ALL": "C"}
    kept |= {"PGTARGETSESSIONATTRS": "any"}
    try:
        done = guard.host.run(argv, user=guard.user, env=kept, timeout=_REHEARSAL_S)
    except CommandFailed as error:
        reason = f"it could not query {asked}: {[*error.lines, error.reason][0]}"
        raise guard_refused(guard, reason, hint=_HINT_QUESTION) from error
    except CommandTimedOut as error:
        raise guard_refused(guard, f"{asked} gave no answer in {error.seconds:g} s") from error
    output = done.stdout.strip()
    if output not in ("t", "f"):
        raise guard_refused(guard, f"unexpected answer from {asked}: {output!r}")
    return output == "t"


def disarm(guard: Guard, *, patience_s: float = PATIENCE) -> list[str]:
    """End a guard and remove its directory, and show what had become of it.

    The first line is that, and whether it had `fired`, the rest is its log. `disarmed`: it was
    counting, and has done nothing. `fired`: it has resumed all of its aliases, and no other
    command did anything; it may have been asking still. `failed`: it fired and gave up after ten
    minutes. `died`: it was killed before it was done. `absent`: there was none, or another's.
    After the last three the command that paused must see itself that nothing stays paused.

    One that is firing is waited for, whole seconds; raises guard_busy if it does not get to
    an end, and leaves it working. Raises guard_refused where the host does not do as asked.
    """
    return _run(guard, "disarm", str(int(patience_s)), timeout=patience_s + 30).splitlines()


def _run(guard: Guard, part: str, *words: str, text: str = "", timeout: float) -> str:
    """Run a part of the script on the guard's host; raises guard_refused, guard_busy."""
    words = (str(guard.directory), guard.owner or "", *words)
    try:
        return scripts.run(
            guard.host, "guard", part, *words, user=guard.user, text=text, timeout=timeout
        )
    except CommandFailed as error:
        reason = "\n  ".join(error.lines[-_LINES:]) or error.reason
        if error.completed.code != _BUSY:
            raise guard_refused(guard, reason) from error
        raise Incomplete(
            "guard_busy",
            f"guard {guard.name} ({guard.directory}): {reason}",
            hint="the guard retries for ten minutes: check the pooler, then disarm the guard again",
        ) from error
    except CommandTimedOut as error:
        reason = f"no result from the host within {error.seconds:g} s"
        raise guard_refused(guard, reason) from error


def guard_refused(guard: Guard, reason: str, *, hint: str = _HINT) -> Refused:
    """Report a guard that could not be armed, which leaves nothing behind, or not be disarmed."""
    return Refused("guard_refused", f"guard {guard.name} ({guard.directory}): {reason}", hint=hint)
