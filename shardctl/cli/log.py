"""The log in $XDG_STATE_HOME/shardctl: everything that shardctl ran, with times."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from shardctl.cli import messages
from shardctl.masking import without_passwords


def state_directory() -> Path:
    """Return where shardctl keeps logs and results; raises OSError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "shardctl"
    except RuntimeError as error:  # neither HOME nor an entry in the system's users
        raise FileNotFoundError(f"{error} Set HOME or XDG_STATE_HOME") from error


def log_file() -> Path:
    """Return the path of today's log (UTC); raises OSError for a user without a home."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return state_directory() / f"shardctl-{day}.log"


def open_log(*, verbose: bool, as_json: bool = False) -> None:
    """Write the package's log to the day's file, and to standard error if `verbose`.

    Each line is text, or with `as_json` an object.

    A log that cannot be written must not stop an operator: one line on standard error reports it,
    and the command continues.
    """
    import logging

    from shardctl.cli.log_objects import Objects

    logger = logging.getLogger("shardctl")
    if logger.handlers:
        return
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    line = logging.Formatter(
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
        stream = sys.stderr
        handlers.append(
            logging.StreamHandler(stream.plain if isinstance(stream, messages.Messages) else stream)
        )
    for handler in handlers:
        handler.setFormatter(Objects() if as_json else line)
        logger.addHandler(handler)
    logger.info("shardctl %s", shlex.join(map(without_passwords, sys.argv[1:])))


def record_bug(trace: str, *, as_json: bool = False) -> str:
    """Append a traceback to the log; return where it is."""
    text = f"{messages.written('critical', trace)}\n" if as_json else trace
    try:
        _make()
        with log_file().open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        print(trace, file=sys.stderr)
        return "the lines above"
    return str(log_file())


def _make() -> None:
    """Create the log, readable only for its owner: it has the operator's commands."""
    log_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    log_file().touch(mode=0o600)
