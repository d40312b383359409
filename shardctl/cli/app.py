"""The command's entry: the list of commands, the one error boundary, standard streams."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main
from typer.exceptions import TyperException

from shardctl import __version__
from shardctl.cli import output
from shardctl.cli.command import App, Group, usage_error
from shardctl.cli.context import Settings
from shardctl.errors import Interrupted, ShardctlError
from shardctl.printable import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


GROUPS = {
    "Daily": {
        "status": "Show nodes, replication, poolers, moves and the shards' sizes.",
        "shards": "List the shards by size and load.",
        "verify": "Compare topology, databases and poolers.",
        "events": "List what shardctl changed, on all nodes, by time.",
        "metrics": "Print the fleet's figures for Prometheus.",
        "init": "Bring the fleet to the state of the topology file.",
        "migrate": "Run new migrations on every shard.",
        "pgbouncer": "Render, compare and apply the poolers' aliases.",
        "route": "Show where the rows of keys are.",
        "decode-id": "Decode ids: time, shard and sequence.",
        "encode-id": "Print the smallest id of a time, for range scans.",
        "sql": "Run a statement in every shard, or on every node.",
        "run": "Run a shell command on every host.",
        "hosts": "Show how hosts are reached, or test it.",
        "topology": "Check the topology file, compare it with the fleet.",
    },
    "Moves": {
        "move-shards": "Move shards to another node, and compare every row.",
        "moves": "List, show, resume, abort or reverse moves, and clear what they left.",
        "rebalance": "Plan and carry out moves that give every node its share.",
        "node": "Add a node, empty one, remove one.",
        "prune": "Drop the retired schemas of closed moves.",
    },
    "Repair": {
        "read-only": "Refuse writes to shards; accept them again.",
        "rows": "Find rows that are in a wrong shard.",
        "repack": "Rewrite bloated tables while they are in use.",
    },
    "Sandbox": {
        "sandbox": "Run a topology's nodes as real servers on this machine.",
        "demo": "Show the whole story on a throw-away fleet.",
    },
}
"""Every command and its line in the help, which imports none of them."""

HELP = {name: line for group in GROUPS.values() for name, line in group.items()}
COMMANDS = [*HELP]
"""Every command; the module of that name is imported when it is called, or that of `SHARED`."""

SHARED = {
    "init": "provision",
    "migrate": "provision",
    "metrics": "verify",
    "decode-id": "ids",
    "encode-id": "ids",
    "route": "ids",
    "shards": "status",
    "run": "hosts",
    "prune": "moves",
    "demo": "sandbox",
}
"""Commands with an application of their own in another one's module."""

BUG = 70
"""Exit code of an error in shardctl itself (EX_SOFTWARE of sysexits.h)."""


UNKNOWN = 3
"""Exit code of `--nagios` when shardctl itself failed, as monitoring plugins have it."""


class Commands(Group):
    """A group that imports a command when it is called, so that start-up stays quick."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = dict.fromkeys(COMMANDS)  # typer suggests these

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # typer's signature
        """Return all commands, in the order of the help."""
        return COMMANDS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # typer's signature
        """Import one command; None if none has that name."""
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"shardctl.cli.{SHARED.get(cmd_name, name)}")
        found = getattr(module, f"{name}_app" if cmd_name in SHARED else "app")
        command = typer.main.get_command(found)
        command.name, command.help = cmd_name, command.help or HELP[cmd_name]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # as typer calls it
        """Write the commands, group by group."""
        for title, lines in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*lines.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raises Interrupted for Ctrl-C that the command itself did not handle.

        SIGTERM and a lost terminal (SIGHUP) count as Ctrl-C, in every command.
        """
        try:
            with as_ctrl_c():
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            settings: Settings = ctx.obj
            again = "run the same command again: it continues where it stopped"
            raise Interrupted("interrupted", hint=again if settings.changes else "") from interrupt


app = App(
    cls=Commands,
    add_completion=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardctl {__version__}")
        raise typer.Exit


@app.callback()
def shardctl(
    *,
    version: Annotated[  # its callback prints and exits
        bool, typer.Option(callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Operate a sharded PostgreSQL fleet that one topology.yaml describes."""


class Bug(ShardctlError):
    """An error in shardctl itself."""

    exit_code = BUG


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code (docs/reference/exit-codes.md)."""
    if "_SHARDCTL_COMPLETE" in os.environ:
        os.environ["COLUMNS"] = "1000"  # typer folds explanations, and fish reads each line as one
    # What answers in a server's place gets no password in clear text. The environment comes last in
    # libpq: `database.options` and services override it.
    os.environ.setdefault("PGREQUIREAUTH", "!password")
    # Looking for plugins of pydantic reads every package's metadata, and would run their code.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"
    # The last look for garbage takes up to 0.2 s, and all memory goes anyway.
    atexit.register(gc.freeze)
    os.umask(os.umask(0o077) | 0o022)  # what others could write to would decide what we do next
    settings = Settings()
    with _guarded(settings) as unwritten:
        code = _run(arguments, settings, unwritten)
    sys.exit(settings.exit_code(code))


def _run(
    arguments: Sequence[str] | None, settings: Settings, unwritten: list[ShardctlError]
) -> int:
    """Run the command line, print its error, and return the exit code."""
    output.Printed.json = False
    words = list(sys.argv[1:] if arguments is None else arguments)
    code = 0
    error: ShardctlError | None = None
    try:
        code = typer.main.get_command(app).main(
            words, "shardctl", standalone_mode=False, obj=settings
        )
        sys.stdout.flush()
        error = unwritten[0] if unwritten else None
    except ShardctlError as raised:
        error = raised
    except TyperException as raised:
        error = usage_error(raised)
    except Exception as raised:  # noqa: BLE001  # the boundary: any other error is a bug
        error = _bug(raised)
    if settings.output is None:  # the command's options could not be read
        settings.guess(words)
    if error is not None:
        _report(error, settings)
        code = UNKNOWN if settings.nagios else error.exit_code
    return code or 0


def _bug(error: Exception) -> Bug:
    from shardctl.cli import log

    file = log.record_bug(traceback.format_exc())
    return Bug(
        f"bug: {type(error).__name__}: {error}",
        hint=f"please report it, with the traceback in {file}",
    )


def _report(error: ShardctlError, settings: Settings) -> None:
    """Print the parts of an error, each with its hint.

    With `-o json`, standard output gets them as an object if it has no result.
    """
    if settings.output == "json" and not output.Printed.json:
        with suppress(BrokenPipeError, ResultUnwritten):
            output.print_json({"format": 1, **output.errors_json(error)})
    # Earlier output comes first, even if both streams go to one file.
    if settings.nagios:
        with suppress(BrokenPipeError, ResultUnwritten):
            text = one_line(error.parts()[0].message).replace("|", "/")
            print(f"SHARDCTL UNKNOWN - {text}")
    with suppress(BrokenPipeError, ResultUnwritten):
        sys.stdout.flush()
    for each in error.parts():
        output.say_error(each)


class ResultUnwritten(ShardctlError):
    """A result that could not be written to standard output, of a change that is `done` or not."""

    def __init__(self, reason: str, *, done: bool) -> None:
        super().__init__(
            f"standard output: {reason}",
            hint="the result is incomplete: free space, then run the same command again",
        )
        self.exit_code = 3 if done else 1


class Stream:
    """A text stream that obeys no text, fails once, and discards all later output.

    It calls `failed` with the error, which may raise one. `drawn` is for what rich has escaped.
    """

    def __init__(
        self, stream: Any, failed: Callable[[OSError], None], *, drawn: bool = False
    ) -> None:
        self._stream = stream
        self._failed = failed
        self._drawn = drawn

    @property
    def rich_proxied_file(self) -> Stream:
        """Give the stream to which rich writes colours and movements of the cursor."""
        return Stream(self._stream, self._failed, drawn=True)

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or discard."""
        try:
            self._stream.write(text if self._drawn else printable(text))
        except OSError as error:
            self._discard(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or discard."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        # The buffered text would fail again with every flush, including the interpreter's last one.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._failed(error)


@contextmanager
def _guarded(settings: Settings) -> Iterator[list[ShardctlError]]:
    """Guard standard output and standard error while a block runs.

    A failed output ends a command that only reads, but not a change: its error is given, to be
    reported at the end.
    """
    unwritten: list[ShardctlError] = []

    def failed(error: OSError) -> None:
        left = error.errno == errno.EPIPE  # the reader has ended, as `head` does
        if left and not settings.changes:
            raise error
        if not left:
            unwritten.append(ResultUnwritten(error.strerror or str(error), done=settings.changes))
            if not settings.changes:
                raise unwritten[0]

    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout = Stream(sys.stdout, failed)
    sys.stderr = Stream(sys.stderr, lambda _: None)
    try:
        yield unwritten
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open closed standard streams: otherwise another file would get the number and the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, nowhere)


_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Make SIGTERM and SIGHUP (a lost terminal) raise KeyboardInterrupt while a block runs.

    An ignored signal, as under nohup, stays ignored. Only the main thread may handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # None is a handler that is not Python's.
    ours = {n: h for n, h in before.items() if h is not None and h != signal.SIG_IGN}
    try:
        for number in ours:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
