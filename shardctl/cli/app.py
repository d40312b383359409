"""The command's entry: global options, the list of commands, the one error boundary."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core
import typer.main

from shardctl import __version__
from shardctl.cli.context import Settings
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


class Commands(typer.core.TyperGroup):
    """A group that imports a command when it is called for, so that start-up stays quick."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # What a mistyped name is compared with; the commands themselves come when asked for.
        self.commands = dict.fromkeys(COMMANDS, typer.core.TyperCommand(name=None))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # typer's signature
        """Name all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # typer's signature
        """Import one command, or give None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C that no command turned into more is an interruption."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                "interrupted", hint="run the same command again to finish what it began"
            ) from interrupt


app = typer.Typer(
    rich_markup_mode="markdown",
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
    ctx: typer.Context,
    *,
    topology: Annotated[
        Path | None,
        typer.Option(
            "--topology",
            metavar="FILE",
            envvar="SHARDCTL_TOPOLOGY",
            help="The cluster's file; ./topology.yaml by default.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show the log on standard error too.")
    ] = False,
    version: Annotated[  # noqa: ARG001  # its callback prints and leaves
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Operate a sharded PostgreSQL fleet that one topology.yaml describes."""
    ctx.obj = Settings(topology=topology, verbose=verbose)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code (docs/reference/exit-codes.md)."""
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="shardctl")
    except ShardctlError as error:
        _report(error)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001  # the boundary: whatever gets here is a bug
        from shardctl.cli import log

        file = log.record_bug(traceback.format_exc())
        print(f"shardctl: bug: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"  the traceback is in {file}; please report it", file=sys.stderr)
        sys.exit(BUG)


def _report(error: ShardctlError) -> None:
    """Print an error and what to do about it, and the errors it is made of."""
    # What was printed so far comes first, also where both streams are one file.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for each in error.parts():
        # What begins with a place in a file is left so: editors and people jump there.
        print(str(each) if each.located else f"shardctl: {each}", file=sys.stderr)
        if each.hint:
            print(f"  {each.hint}", file=sys.stderr)
