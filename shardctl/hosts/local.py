"""This machine as a host."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed, CommandTimedOut, Completed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

logger = logging.getLogger(__name__)


class Local:
    """Runs commands as subprocesses, each in a session of its own.

    Ctrl-C at the terminal therefore reaches shardctl alone, which stops at a safe point.
    """

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  # the word that subprocess uses
        timeout: float | None = None,
        keep_open: Collection[int] = (),
    ) -> Completed:
        """Run `argv` as `Host.run` says; the command inherits the descriptors in `keep_open`.

        Another `user` than oneself needs root, and exists; the command then begins in `/`,
        with that user's groups and an environment without the caller's own variables.
        """
        began = time.monotonic()
        try:
            process = self._begin(argv, user=user, env=env or {}, keep_open=keep_open)
        except OSError as error:
            failed = Completed("", error.strerror or str(error), 127)
            raise CommandFailed(argv, failed) from error
        with process:
            try:
                stdout, stderr = process.communicate(input or "", timeout=timeout)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise CommandTimedOut(argv, timeout or 0) from None
            except BaseException:
                _kill(process)
                raise
        completed = Completed(stdout, stderr, process.returncode)
        logger.debug(
            "ran %s%s: code %d, %d ms",
            shlex.join(argv),
            f" as {user}" if user else "",
            completed.code,
            (time.monotonic() - began) * 1000,
        )
        if completed.code != 0:
            raise CommandFailed(argv, completed)
        return completed

    def _begin(
        self,
        argv: Sequence[str],
        *,
        user: str | None,
        env: Mapping[str, str],
        keep_open: Collection[int],
    ) -> subprocess.Popen[str]:
        """Start the process, with pipes for its three streams."""
        other = None
        if user is not None and pwd.getpwnam(user).pw_uid != os.geteuid():
            other = pwd.getpwnam(user)
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**(_environment(other) if other else os.environ), **env},
            cwd="/" if other else None,
            user=other.pw_uid if other else None,
            group=other.pw_gid if other else None,
            extra_groups=os.getgrouplist(other.pw_name, other.pw_gid) if other else None,
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )


def _environment(account: pwd.struct_passwd) -> dict[str, str]:
    """Make a small environment for another user: nothing of the caller's but PATH and TZ."""
    kept = {name: os.environ[name] for name in ("PATH", "TZ") if name in os.environ}
    return {
        "PATH": os.defpath,
        **kept,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
    }


def _kill(process: subprocess.Popen[str]) -> None:
    """End the command with all that it started in its own process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
