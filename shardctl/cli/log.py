"""The log in $XDG_STATE_HOME/shardctl: everything that shardctl ran, with times."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.postgres.split import without_passwords
from shardctl.printable import one_line, printable

if TYPE_CHECKING:
    from io import TextIOWrapper


def log_file() -> Path:
    """Return the path of today's log (UTC); raises OSError for a user without a home.

    Where HOME is another user's, as after `su`, it is in the home of the user who runs shardctl.
    """
    state, home = os.environ.get("XDG_STATE_HOME"), os.environ.get("HOME")
    try:
        if not (home and _is_ours(Path(home))):
            home = state or pwd.getpwuid(os.geteuid()).pw_dir
        there = Path(state or Path(home, ".local/state")).expanduser()
    except (KeyError, RuntimeError) as error:  # as in a container
        raise FileNotFoundError("this user has no home: set XDG_STATE_HOME") from error
    return there / "shardctl" / time.strftime("shardctl-%Y-%m-%d.log", time.gmtime())


def open_log(*, verbose: bool) -> None:
    """Write the package's log to the day's file, and to standard error if `verbose`.

    What psycopg warns of, such as a cancellation that Ctrl-C interrupts, goes there, too.
    A log that cannot be written must not stop an operator: one line on standard error reports it,
    and the command continues.
    """
    import logging

    logger = logging.getLogger("shardctl")
    if logger.handlers:
        return

    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    class Line(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return one_line(super().format(record))

    line = Line(
        "%(asctime)s.%(msecs)03dZ %(process)d %(levelname)s %(name)s: %(message)s",
        "%Y-%m-%dT%H:%M:%S",
    )
    line.converter = time.gmtime
    handlers: list[logging.Handler] = []
    try:
        file = logging.FileHandler(log_file(), delay=True)
        file.stream = _open()
        handlers.append(file)
    except OSError as error:
        print(f"shardctl: cannot write the log: {error}", file=sys.stderr)
    if verbose:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(line)
        logger.addHandler(handler)
    library = logging.getLogger("psycopg")
    library.addHandler(logging.NullHandler())  # without one, Python prints warnings on the screen
    library.parent = logger
    logger.info("shardctl %s", shlex.join(map(without_passwords, sys.argv[1:])))


def record_bug(trace: str) -> str:
    """Append a traceback to the log; return where it is."""
    try:
        with _open() as file:
            file.write(textwrap.indent(printable(trace), "  "))  # no line looks like the log's own
    except OSError:
        print(trace, file=sys.stderr)
        return "the lines above"
    return str(log_file())


def _open() -> TextIOWrapper:
    """Open the log to append to it, readable only for its owner: it has the operator's commands.

    Raises OSError, too, where another user may have put a link in its way.
    """
    file = log_file().absolute()
    for part in reversed(file.parents):
        if not part.exists():
            part.mkdir(mode=0o700, exist_ok=True)
        if not (_is_ours(part) or part.lstat().st_uid == 0):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(part))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    held = os.open(file, flags, 0o600)
    return os.fdopen(held, "a", encoding="utf-8")


def _is_ours(path: Path) -> bool:
    """Return whether it is this user's own, or still to be made."""
    return not path.exists() or path.lstat().st_uid == os.geteuid()
