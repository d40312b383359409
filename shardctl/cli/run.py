"""`shardctl run`: a command on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options, values
from shardctl.cli.command import App, HereChanging
from shardctl.cli.context import load_topology
from shardctl.cli.output import confirm, plural, print_json, print_table, say
from shardctl.errors import Interrupted, Problems, Refused, ShardctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.cli.context import Settings
    from shardctl.maintenance.run import Result
    from shardctl.topology.model import Topology

app = App()


@app.command(cls=HereChanging)
def run(
    ctx: typer.Context,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="Shell command, quoted.")],
    *,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NAMES",
            autocompletion=options.server_names,
            help="nodes, poolers, or names such as a,p1: once for each; else once a machine.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="USER", help="Run it as this user; over SSH with sudo."),
    ] = None,
    timeout: Annotated[
        values.Duration | None,
        values.duration_option(
            "--timeout", "Kill it after this time, for example 30s.", least=values.MS
        ),
    ] = None,
) -> None:
    """Run a shell command on every host in parallel; equal outputs are printed once.

    Without --on it runs once on each machine. With --on it runs once for each named node or
    pooler, described by $SHARDCTL_NAME, $SHARDCTL_KIND, $SHARDCTL_PORT, $SHARDCTL_DATA_DIRECTORY
    and more. Exit code 1 if any run exits with another code than 0.
    """
    from shardctl.cli.progress import bars
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
            results = work.on(chosen, progress)
    except KeyboardInterrupt as interrupt:
        _show(work.results, command, settings)
        _record(topology, command, work.results, settings)
        raise Interrupted(
            "interrupted: shardctl killed the command on every host where it was running",
            hint="its changes until then remain",
        ) from interrupt
    _show(results, command, settings)
    _record(topology, command, results, settings)
    _leave(results)


def _record(
    topology: Topology, command: str, results: Sequence[Result], settings: Settings
) -> None:
    """Record what ran on the nodes where it did, and tell where that failed."""
    from shardctl.maintenance import run as running

    for note in [] if settings.dry_run else running.record(topology, command, results):
        say(f"note: {note}")


def _show(results: Sequence[Result], command: str, settings: Settings) -> None:
    if settings.json:
        reported = [one.as_json() for one in results]
        dry_run = settings.dry_run
        print_json({"format": 1, "command": command, "dry_run": dry_run, "results": reported})
    elif settings.dry_run:
        rows = [
            (one.target.label, one.target.machine, one.stdout.strip() or "-") for one in results
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


def _leave(results: Sequence[Result]) -> None:
    """Exit with the errors and the exit code of all runs; raises Problems, Exit."""
    from shardctl.maintenance.run import exit_code

    code = exit_code(results)
    reasons: dict[str, tuple[ShardctlError, list[str]]] = {}
    for one in results:
        if one.error is not None:
            reasons.setdefault(one.error.message, (one.error, []))[1].append(one.target.label)
    errors: list[ShardctlError] = [
        Refused(error.code, f"{', '.join(labels)}: {error.message}", hint=error.hint)
        for error, labels in reasons.values()
    ]
    if errors:
        raise Problems(errors, exit_code=code)
    if code:
        raise typer.Exit(code)
