"""The log in $XDG_STATE_HOME/shardctl: everything that shardctl ran, with times."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import time
from pathlib import Path

from shardctl.postgres.masking import without_passwords
from shardctl.printable import one_line, printable


def log_file() -> Path:
    """Return the path of today's log (UTC); raises OSError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    try:
        there = Path(state).expanduser()
    except RuntimeError as error:  # neither HOME nor an entry in the system's users
        raise FileNotFoundError(f"{error} Set HOME or XDG_STATE_HOME") from error
    return there / "shardctl" / f"shardctl-{day}.log"


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
        _make()
        handlers.append(logging.FileHandler(log_file(), encoding="utf-8", delay=False))
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
        _make()
        with log_file().open("a", encoding="utf-8") as file:
            file.write(textwrap.indent(printable(trace), "  "))  # no line looks like the log's own
    except OSError:
        print(trace, file=sys.stderr)
        return "the lines above"
    return str(log_file())


def _make() -> None:
    """Create the log, readable only for its owner: it has the operator's commands."""
    log_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_file().touch(mode=0o600)
