"""`shardctl hosts`: how every host is reached, and whether it has what shardctl needs."""

from __future__ import annotations

import typer

from shardctl.cli.command import App
from shardctl.cli.context import load_topology
from shardctl.cli.options import Listing, ListingOption, Report, ReportOption
from shardctl.cli.output import emit, plural, print_json, print_line, print_table
from shardctl.errors import UsageError

app = App(invoke_without_command=True, no_args_is_help=False)


@app.callback()
def hosts(ctx: typer.Context, *, output: ListingOption = Listing.table) -> None:
    """Show how shardctl reaches the host of every node and pooler; contacts none of them.

    `hosts check` tests the connections.
    """
    if ctx.invoked_subcommand is not None:
        if output is not Listing.table:
            raise UsageError(
                "-o belongs behind the subcommand", hint="shardctl hosts check -o json"
            )
        return
    from shardctl.checks import hosts as checks

    routes = checks.routes(load_topology(ctx))
    rows = [
        (
            route["server"],
            route["kind"],
            route["address"],
            "here" if route["login"] is None else f"ssh {route['login']}",
            route["os_user"] or "-",
        )
        for route in routes
    ]
    emit(output, ("server", "kind", "address", "way", "os_user"), rows, {"hosts": routes})


@app.command()
def check(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Test every host: SSH, sudo, programs, status commands, and poolers' files.

    Changes nothing. Each fault is printed with its fix; exit code 1 if there is an error.
    """
    from shardctl.checks import hosts as checks
    from shardctl.cli.progress import bars

    with bars() as progress:
        found = checks.test(load_topology(ctx), progress)
    if output is Report.json:
        results = [one.as_json() for one in found]
        print_json({"format": 1, "ok": checks.ok(found), "results": results})
    else:
        rows = [(o.host, o.server or "-", o.test, o.state, o.found) for o in found]
        print_table(("host", "server", "test", "state", "found"), rows)
        for one in found:
            if one.hint:
                of = f", {one.server}" if one.server else ""
                print_line(f"{one.state}: {one.host}{of}: {one.test}: {one.found}")
                print_line(f"  {one.hint}")
        wrong = sum(bool(one.hint) for one in found)
        print("all is well" if not wrong else plural(wrong, "fault"))
    if not checks.ok(found):
        raise typer.Exit(1)
