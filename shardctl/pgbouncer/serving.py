"""Let a pooler serve paused aliases again, with the file that it has then.

Between RELOAD and RESUME a login makes PgBouncer connect to an alias's new node; the pause closes
that connection at once, PgBouncer takes the node for one that fails, and all clients of the alias
wait for `server_login_retry`, 15 s unless configured otherwise. A login of an alias that no client
has used since it last led elsewhere does the same at any time of a pause, and so does a connection
that is being made when PAUSE comes. So both commands go in one packet, and `server_login_retry` is
shorter for a moment: what such a login has spoilt all the same is tried again at once.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from shardctl.pgbouncer.console import resume_command

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardctl.pgbouncer.console import CommandRefused, Console

RELOAD = "RELOAD"
SHORT_S = "0.01"
"""The `server_login_retry` of that moment."""

_SETTING = "server_login_retry"
_SECONDS = 60.0
_PLAIN = re.compile(r"[0-9]+(\.[0-9]+)?")
_POLL_S = 0.01


def retry_of(console: Console) -> str:
    """Give the `server_login_retry` in force; empty where it is not to be put back.

    It is not where an earlier moment's is still in force: RELOAD is what ends that.
    """
    value = console.config().get(_SETTING, "")
    return value if _PLAIN.fullmatch(value) and not _short(value) else ""


def was_left_short(config: Mapping[str, str]) -> bool:
    """Report a pooler's settings whether `server_login_retry` is that of such a moment.

    >>> was_left_short({"server_login_retry": "0.01"}), was_left_short({"server_login_retry": "15"})
    (True, False)
    """
    value = config.get(_SETTING, "")
    return bool(_PLAIN.fullmatch(value)) and _short(value)


def begin(
    console: Console, aliases: Sequence[str], *, reload: bool, shorten: bool = True
) -> list[CommandRefused]:
    """Send what serves clients again, as one packet, and give what was refused.

    That an alias is not paused matters nothing. `end` has to follow where `server_login_retry` is
    to `shorten`. Raises PoolerLost.
    """
    commands = [RELOAD] if reload else []
    commands += [setting(SHORT_S)] if shorten else []
    commands += map(resume_command, aliases)
    return console.execute_all(commands, seconds=_SECONDS)


def end(console: Console, retry: str) -> None:
    """Put `server_login_retry` back; raises CommandRefused and PoolerLost."""
    if retry:
        console.execute(setting(retry))
    else:
        console.reload()


def _short(value: str) -> bool:
    return float(value) <= float(SHORT_S)


def setting(retry: str) -> str:
    """Write the command that sets `server_login_retry`; `retry` is a number."""
    return f"SET {_SETTING} = '{retry}'"


def watch(console: Console, aliases: Collection[str], *, seconds: float) -> tuple[str, ...]:
    """Wait until each alias's clients have had a connection that is free, or none waits.

    Gives those that were not within `seconds`. Raises PoolerLost.
    """
    deadline = time.monotonic() + seconds
    left = set(aliases)
    while True:
        waiting = {
            row["database"]
            for row in console.pools()
            if int(row["cl_waiting"] or 0) and not int(row["sv_idle"] or 0)
        }
        left &= waiting  # who has been served may wait again, as at any time
        if not left or time.monotonic() > deadline:
            return tuple(sorted(left))
        time.sleep(_POLL_S)
