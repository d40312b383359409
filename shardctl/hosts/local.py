"""This machine as a host."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from shardctl.hosts.host import CommandFailed, CommandTimedOut, Completed, succeeded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path


class Local:
    """Runs commands as subprocesses, each in a session of its own.

    Ctrl-C at the terminal therefore reaches only shardctl, which stops at a safe point.
    """

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002  # the word that subprocess uses
        timeout: float | None = None,
        begun: Callable[[str], None] | None = None,
        keep_open: Collection[int] = (),
    ) -> Completed:
        """Run `argv` as in `Host.run`; the command inherits the descriptors in `keep_open`.

        Another `user` than oneself needs root, and exists; the command then begins in `/`,
        with that user's groups and an environment without the caller's own variables.
        """
        began = time.monotonic()
        with self._begin(argv, user=user, env=env or {}, keep_open=keep_open) as process:
            try:
                if begun is not None:
                    begun(str(process.pid))
                output, errors = process.communicate(input or "", timeout)
            except BaseException as error:
                _kill(process)
                if isinstance(error, subprocess.TimeoutExpired):
                    printed = (error.stdout or b"").decode(errors="replace")
                    raise CommandTimedOut(argv, timeout or 0, printed) from None
                raise
        return succeeded(argv, Completed(output, errors, process.returncode), user, began)

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Rename a file within this process, as in `Host.renamed`.

        Root leaves it to a command of that user unless the folder is that user's own, who may do
        there all that this does.
        """
        if new.parent != path.parent:
            return False
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if user is not None and is_other(user):
                owner = os.fstat(folder).st_uid
                if os.geteuid() != 0 or owner != pwd.getpwnam(user).pw_uid:
                    return False
            os.rename(new.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(folder)
        return True

    def _begin(
        self,
        argv: Sequence[str],
        *,
        user: str | None,
        env: Mapping[str, str],
        keep_open: Collection[int],
    ) -> subprocess.Popen[str]:
        """Start the process, with pipes for its three streams; raises CommandFailed."""
        other = pwd.getpwnam(user) if user is not None and is_other(user) else None
        try:
            return subprocess.Popen(
                [*(_as(other) if other else ()), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env={**(_environment(other) if other else os.environ), **env},
                cwd="/" if other else None,
                start_new_session=True,
                pass_fds=tuple(keep_open),
            )
        except OSError as error:
            failed = Completed("", error.strerror or str(error), 127)
            raise CommandFailed(argv, failed) from error


def _as(other: pwd.struct_passwd) -> list[str]:
    """Return what goes before a command to run it as that user, with that user's groups.

    Not by Popen's `user`, with which Python calls fork and not vfork, and so copies the page tables
    of all its memory for each command.
    """
    groups = ",".join(map(str, os.getgrouplist(other.pw_name, other.pw_gid)))
    ids = [f"--reuid={other.pw_uid}", f"--regid={other.pw_gid}", f"--groups={groups}"]
    return ["setpriv", *ids, "--"]


def is_other(user: str | None) -> bool:
    """Return whether that is another user than the one as whom this process runs."""
    return user is not None and pwd.getpwnam(user).pw_uid != os.geteuid()


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
