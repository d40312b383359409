"""This machine as a host."""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import selectors
import shlex
import signal
import subprocess
import time
from typing import IO, TYPE_CHECKING, Any, cast

from shardctl.hosts.host import CommandFailed, CommandTimedOut, Completed, Lines, Text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_PIECE = 65536


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
        line: Callable[[str], None] | None = None,
        keep_open: Collection[int] = (),
    ) -> Completed:
        """Run `argv` as in `Host.run`; the command inherits the descriptors in `keep_open`.

        Another `user` than oneself needs root, and exists; the command then begins in `/`,
        with that user's groups and an environment without the caller's own variables.
        """
        began = time.monotonic()
        output, errors = Lines(line) if line is not None else Text(), Text()
        process = self._begin(argv, user=user, env=env or {}, keep_open=keep_open)
        with _to_its_end(process, argv, timeout):
            _converse(process, input or "", output, errors, timeout)
            spent = time.monotonic() - began
            process.wait(None if timeout is None else max(0, timeout - spent))
            printed = output.end()
        completed = Completed(printed, errors.end(), process.returncode)
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

    def renamed(self, new: Path, path: Path, *, user: str | None = None) -> bool:
        """Rename a file within this process, as in `Host.renamed`.

        Root leaves it to a command of that user unless the folders are that user's own, who may do
        there all that this does.
        """
        with contextlib.ExitStack() as stack:
            folders = []
            for one in (new, path):
                folders.append(os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY))
                stack.callback(os.close, folders[-1])
            if user is not None and is_other(user):
                owners = {os.fstat(folder).st_uid for folder in folders}
                if os.geteuid() != 0 or owners != {pwd.getpwnam(user).pw_uid}:
                    return False
            os.rename(new.name, path.name, src_dir_fd=folders[0], dst_dir_fd=folders[1])
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
        given: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "encoding": "utf-8",
            "errors": "replace",
            "env": {**(_environment(other) if other else os.environ), **env},
            "cwd": "/" if other else None,
            "start_new_session": True,
            "pass_fds": tuple(keep_open),
        }
        try:
            return subprocess.Popen([*(_as(other) if other else ()), *argv], **given)
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


@contextlib.contextmanager
def _to_its_end(
    process: subprocess.Popen[str], argv: Sequence[str], timeout: float | None
) -> Iterator[None]:
    """Kill a process where anything ends the wait for it; raises CommandTimedOut."""
    with process:
        try:
            yield
        except subprocess.TimeoutExpired:
            _kill(process)
            raise CommandTimedOut(argv, timeout or 0) from None
        except BaseException:
            _kill(process)
            raise


def _converse(
    process: subprocess.Popen[str], text: str, output: Text, errors: Text, timeout: float | None
) -> None:
    """Feed and drain a process until it has closed its outputs; raises TimeoutExpired.

    All at once, for it may wait to be read before it reads; and a command that has left its process
    group with an output open does not make this wait beyond the deadline.
    """
    pipes = (process.stdin, process.stdout, process.stderr)
    stdin, stdout, stderr = cast("tuple[IO[str], IO[str], IO[str]]", pipes)
    deadline = None if timeout is None else time.monotonic() + timeout
    left = memoryview(text.encode(errors="replace"))
    with selectors.DefaultSelector() as ready:
        os.set_blocking(stdin.fileno(), False)
        ready.register(stdin, selectors.EVENT_WRITE)
        ready.register(stdout, selectors.EVENT_READ, output)
        ready.register(stderr, selectors.EVENT_READ, errors)
        while ready.get_map():
            seconds = None if deadline is None else deadline - time.monotonic()
            if seconds is not None and seconds <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout or 0)
            for key, _ in ready.select(seconds):
                if key.fileobj is stdin:
                    left = _given(key.fd, left)
                    if not left:
                        ready.unregister(stdin)
                        stdin.close()
                elif piece := os.read(key.fd, _PIECE):
                    key.data.feed(piece)
                else:
                    ready.unregister(key.fileobj)


def _given(pipe: int, left: memoryview) -> memoryview:
    """Write what goes into a pipe now, and give the rest; nothing, if no process reads there."""
    try:
        return left[os.write(pipe, left[:_PIECE]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


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
