"""The command's entry: global options, the list of commands, the one error boundary."""

from __future__ import annotations

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
from shardctl.cli.signals import as_ctrl_c
from shardctl.cli.streams import ResultUnwritten, Streams
from shardctl.errors import Interrupted, ShardctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "init": "shardctl.cli.init",
    "migrate": "shardctl.cli.migrate",
    "verify": "shardctl.cli.verify",
    "status": "shardctl.cli.status",
    "pgbouncer": "shardctl.cli.pgbouncer",
    "move-shards": "shardctl.cli.move_shards",
    "moves": "shardctl.cli.moves",
    "prune": "shardctl.cli.prune",
    "rows": "shardctl.cli.rows",
    "repack": "shardctl.cli.repack",
    "read-only": "shardctl.cli.read_only",
    "sql": "shardctl.cli.sql",
    "run": "shardctl.cli.run",
    "hosts": "shardctl.cli.hosts",
    "route": "shardctl.cli.route",
    "decode-id": "shardctl.cli.decode_id",
    "encode-id": "shardctl.cli.encode_id",
    "topology": "shardctl.cli.topology",
    "sandbox": "shardctl.cli.sandbox",
    "demo": "shardctl.cli.demo",
}
"""Every command and the module whose `app` it is; a module is imported when it is needed."""

BUG = 70
"""Exit code of an error in shardctl itself (EX_SOFTWARE of sysexits.h)."""


class Commands(Group):
    """A group that imports a command when it is called, so that start-up stays quick."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = dict.fromkeys(COMMANDS)  # typer suggests these

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # typer's signature
        """Return all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # typer's signature
        """Import one command; None if none has that name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

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
        code = error.exit_code
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
    from shardctl.cli import output

    if settings.output == "json" and not PRINTED.json:
        with suppress(BrokenPipeError, ResultUnwritten):
            output.print_json({"format": 1, **output.errors_json(error)})
    # Earlier output comes first, even if both streams go to one file.
    with suppress(BrokenPipeError, ResultUnwritten):
        sys.stdout.flush()
    for each in error.parts():
        output.say_error(each)
