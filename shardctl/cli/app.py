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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main
from typer.exceptions import TyperException

from shardctl import __version__
from shardctl.cli import output
from shardctl.cli.command import App, Group, usage_error
from shardctl.cli.options import Settings
from shardctl.errors import Interrupted, ShardctlError
from shardctl.printable import one_line, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


GROUPS = {
    "Daily": {
        "status": ("status", "Show nodes, replication, poolers, moves and the shards' sizes."),
        "shards": ("status", "List the shards by size and load."),
        "verify": ("verify", "Compare topology, databases and poolers."),
        "events": ("events", "List what shardctl changed, on all nodes, by time."),
        "metrics": ("verify", "Print the fleet's figures for Prometheus."),
        "init": ("provision", "Bring the fleet to the state of the topology file."),
        "migrate": ("provision", "Run new migrations on every shard."),
        "pgbouncer": ("provision", "Render, compare and apply the poolers' aliases."),
        "route": ("ids", "Show where the rows of keys are."),
        "decode-id": ("ids", "Decode ids: time, shard and sequence."),
        "encode-id": ("ids", "Print the smallest id of a time, for range scans."),
        "sql": ("sql", "Run a statement in every shard, or on every node."),
        "run": ("hosts", "Run a shell command on every host."),
        "hosts": ("hosts", "Show how hosts are reached, or test it."),
        "topology": ("topology", "Check the topology file, compare it with the fleet."),
    },
    "Moves": {
        "move-shards": ("move_shards", "Move shards to another node, and compare every row."),
        "moves": ("moves", "List, show, resume, abort or reverse moves, and clear what they left."),
        "rebalance": ("rebalance", "Plan and carry out moves that give every node its share."),
        "node": ("node", "Add a node, empty one, remove one."),
        "prune": ("moves", "Drop the retired schemas of closed moves."),
    },
    "Repair": {
        "read-only": ("repair", "Refuse writes to shards; accept them again."),
        "rows": ("repair", "Find rows that are in a wrong shard."),
        "repack": ("repair", "Rewrite bloated tables while they are in use."),
    },
    "Sandbox": {
        "sandbox": ("sandbox", "Run a topology's nodes as real servers on this machine."),
        "demo": ("sandbox", "Show the whole story on a throw-away fleet."),
    },
}
"""Every command, the module that is imported when it is called, and its line in the help."""

COMMANDS = {name: found for group in GROUPS.values() for name, found in group.items()}

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
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # typer's signature
        """Import one command; None if none has that name."""
        if cmd_name not in COMMANDS:
            return None
        name, line = COMMANDS[cmd_name]
        module = importlib.import_module(f"shardctl.cli.{name}")
        found = getattr(module, f"{cmd_name.replace('-', '_')}_app", None) or module.app
        command = typer.main.get_command(found)
        command.name, command.help = cmd_name, command.help or line
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # as typer calls it
        """Write the commands, group by group."""
        for title, lines in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in lines.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run the command; raises Interrupted for Ctrl-C that the command itself did not handle.

        SIGTERM and a lost terminal (SIGHUP) count as Ctrl-C, in every command.
        """
        _take_as_ctrl_c()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            again = "run the same command again: it continues where it stopped"
            raise Interrupted("interrupted", hint=again if ctx.obj.changes else "") from interrupt


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
    named = os.environ.get("SHARDCTL_TOPOLOGY")
    settings = Settings(Path(named) if named else None)
    sys.exit(settings.exit_code(_run(arguments, settings, _guard(settings))))


def _run(
    arguments: Sequence[str] | None, settings: Settings, unwritten: list[ShardctlError]
) -> int:
    """Run the command line, print its error, and return the exit code."""
    output.Printed.json = False
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
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
    with suppress(BrokenPipeError, ResultUnwritten):
        if settings.output == "json" and not output.Printed.json:
            output.print_json({"format": 1, **output.errors_json(error)})
        if settings.nagios:
            text = one_line(error.parts()[0].message).replace("|", "/")
            print(f"SHARDCTL UNKNOWN - {text}")
        # Earlier output comes first, even if both streams go to one file.
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
        self._try(self._stream.write, text if self._drawn else printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or discard."""
        self._try(self._stream.flush)

    def _try(self, call: Callable[..., object], *given: str) -> None:
        try:
            call(*given)
        except OSError as error:
            # The buffered text would fail again with every flush, and with the interpreter's last.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._failed(error)


def _guard(settings: Settings) -> list[ShardctlError]:
    """Guard standard output and standard error from now on.

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
    sys.stdout = Stream(sys.stdout, failed)
    sys.stderr = Stream(sys.stderr, lambda _: None)
    return unwritten


def _open_closed() -> None:
    """Open closed standard streams: otherwise another file would get the number and the output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w" if number else "r", encoding="utf-8")  # noqa: SIM115  # until the end
            setattr(sys, name, nowhere)


def _take_as_ctrl_c() -> None:
    """Make SIGTERM and SIGHUP (a lost terminal) raise KeyboardInterrupt from now on.

    An ignored signal, as under nohup, stays ignored; None is a handler that is not Python's. Only
    the main thread may handle signals.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in (None, signal.SIG_IGN):
                signal.signal(number, signal.default_int_handler)
