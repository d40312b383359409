"""`shardctl hosts` and `run`: how every host is reached, what it has, and a command on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options
from shardctl.cli.command import App, Context, HereChanging, load_topology
from shardctl.cli.options import (
    MS,
    Duration,
    ListingOption,
    ReportOption,
    Settings,
    duration_option,
)
from shardctl.cli.output import confirm, emit, plural, print_json, print_line, print_table, say
from shardctl.cli.progress import bars
from shardctl.errors import Interrupted, Problems, UsageError, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.maintenance.run import Result

app = App(invoke_without_command=True, no_args_is_help=False)


@app.callback()
def hosts(ctx: Context, *, output: ListingOption = "table") -> None:
    """Show how shardctl reaches the host of every node and pooler; contacts none of them.

    `hosts check` tests the connections.
    """
    if ctx.invoked_subcommand is not None:
        if output != "table":
            raise UsageError(
                "-o belongs behind the subcommand", hint="shardctl hosts check -o json"
            )
        return
    from shardctl.checks import hosts as checks

    routes = checks.routes(load_topology(ctx))
    columns = ("server", "kind", "address", "way", "login", "os_user")
    rows = [[route[name] or "-" for name in columns] for route in routes]
    emit(output, columns, rows, {"hosts": routes})


@app.command()
def check(ctx: Context, *, output: ReportOption = "table") -> None:
    """Test every host: SSH, sudo, programs, status commands, and poolers' files.

    Changes nothing. Each fault is printed with its fix; exit code 1 if there is an error.
    """
    from shardctl.checks import hosts as checks

    with bars() as progress:
        found = checks.test(load_topology(ctx), progress)
    wrong = [one for one in found if one.state == "error"]
    if output == "json":
        results = [one._asdict() for one in found]
        print_json({"format": 1, "ok": not wrong, "results": results})
    else:
        rows = [(o.host, o.server or "-", o.test, o.state, o.found) for o in found]
        print_table(("host", "server", "test", "state", "found"), rows)
        for one in wrong:
            of = f", {one.server}" if one.server else ""
            print_line(f"{one.state}: {one.host}{of}: {one.test}: {one.found}")
            print_line(f"  {one.hint}")
        print("all is well" if not wrong else plural(len(wrong), "fault"))
    if wrong:
        raise typer.Exit(1)


run_app = App()


@run_app.command(cls=HereChanging)
def run(
    ctx: Context,
    command: Annotated[str, typer.Argument(help="Shell command, quoted.")],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="<names>",
            autocompletion=options.server_names,
            help="nodes, poolers, or names such as a,p1: once for each; else once a machine.",
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Run it as this user; over SSH with sudo.")
    ] = None,
    timeout: Annotated[
        Duration | None, duration_option("Kill it after this time, for example 30s.", least=MS)
    ] = None,
) -> None:
    """Run a shell command on every host in parallel; equal outputs are printed once.

    Without --on it runs once on each machine. With --on it runs once for each named node or
    pooler, described by $SHARDCTL_NAME, $SHARDCTL_KIND, $SHARDCTL_PORT, $SHARDCTL_DATA_DIRECTORY
    and more. Exit code 1 if any run exits with another code than 0.
    """
    from shardctl.maintenance import run as running

    settings: Settings = ctx.obj
    settings.changes = False  # its output is its result: it ends when its reader does
    topology = load_topology(ctx)
    chosen = running.machines(topology) if on is None else running.servers(topology, on)
    settings.pending = bool(chosen)
    if chosen and not settings.dry_run:
        noun = "host" if on is None else "server"
        confirm(f"Run this command on {plural(len(chosen), noun)}?", yes=settings.yes)
    seconds = timeout.total_seconds() if timeout else None
    work = running.Run("id -un" if settings.dry_run else command, user, seconds)
    try:
        with bars() as progress:
            work.results = work.on(chosen, progress)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            "interrupted: shardctl killed the command on every host where it was running",
            hint="its changes until then remain",
        ) from interrupt
    finally:
        _show(work.results, command, settings)
        for note in [] if settings.dry_run else running.record(topology, command, work.results):
            say(f"note: {note}")
    code = running.exit_code(work.results)
    if errors := [named(one.target.label, one.error) for one in work.results if one.error]:
        raise Problems(errors, exit_code=code)
    if code:
        raise typer.Exit(code)


def _show(results: Sequence[Result], command: str, settings: Settings) -> None:
    if settings.json:
        reported = [one.as_json() for one in results]
        dry_run = settings.dry_run
        print_json({"format": 1, "command": command, "dry_run": dry_run, "results": reported})
    elif settings.dry_run:
        rows = [
            (one.target.label, one.target.machine.name, one.stdout.strip() or "-")
            for one in results
        ]
        print_table(("where", "host", "as"), rows)
    else:
        for same in _folded(results):
            _show_folded(same)


def _folded(results: Sequence[Result]) -> list[list[Result]]:
    """Group equal results, in the order of the first of each."""
    found: dict[tuple[int | None, str, str], list[Result]] = {}
    for one in results:
        # A run that did not start has no output, only an error.
        if one.begun:
            found.setdefault((one.code, one.stdout, one.stderr), []).append(one)
    return list(found.values())


def _show_folded(same: Sequence[Result]) -> None:
    first = same[0]
    labels = ", ".join(one.target.label for one in same)
    noun = "host" if first.target.kind is None else "server"
    count = f" ({plural(len(same), noun)})" if len(same) > 1 else ""
    end = "did not end" if first.code is None else f"exit {first.code}"
    print(f"{labels}{count}, {end}" + (":" if first.stdout or first.stderr else ""))
    for line in first.stdout.splitlines():
        print(f"  {line}")
    for line in first.stderr.splitlines():
        print(f"  stderr: {line}")
