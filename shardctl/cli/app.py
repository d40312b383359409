"""The command's entry: global options, the list of commands, the one error boundary."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.main
from typer.exceptions import TyperException

from shardctl import __version__
from shardctl.cli.command import App, Group, usage_error
from shardctl.cli.context import Settings
from shardctl.cli.printed import PRINTED
from shardctl.cli.streams import ResultUnwritten, Streams, as_ctrl_c
from shardctl.errors import Interrupted, ShardctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        "moves": "List, show, resume, abort or reverse moves.",
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

COMMANDS = [name for group in GROUPS.values() for name in group]
"""Every command; the module of that name is imported when it is called."""

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
        module = importlib.import_module(f"shardctl.cli.{cmd_name.replace('-', '_')}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
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
    no_args_is_help=True,
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
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
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
    streams = Streams(settings)
    with streams.guarded():
        code = _run(arguments, settings, streams)
    sys.exit(settings.exit_code(code))


def _run(arguments: Sequence[str] | None, settings: Settings, streams: Streams) -> int:
    """Run the command line, print its error, and return the exit code."""
    PRINTED.json = False
    words = list(sys.argv[1:] if arguments is None else arguments)
    code = 0
    error: ShardctlError | None = None
    try:
        code = typer.main.get_command(app).main(
            words, "shardctl", standalone_mode=False, obj=settings
        )
        sys.stdout.flush()
        error = streams.unwritten
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
    from shardctl import printable
    from shardctl.cli import output

    if settings.output == "json" and not PRINTED.json:
        with suppress(BrokenPipeError, ResultUnwritten):
            output.print_json({"format": 1, **output.errors_json(error)})
    # Earlier output comes first, even if both streams go to one file.
    if settings.nagios:
        with suppress(BrokenPipeError, ResultUnwritten):
            text = printable.one_line(error.parts()[0].message).replace("|", "/")
            print(f"SHARDCTL UNKNOWN - {text}")
    with suppress(BrokenPipeError, ResultUnwritten):
        sys.stdout.flush()
    for each in error.parts():
        output.say_error(each)
