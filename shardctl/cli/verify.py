"""`shardctl verify`: compare the fleet with the topology file."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion
from shardctl.cli import findings as found
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import console, plural, print_json, print_table, say
from shardctl.errors import UsageError
from shardctl.fanout import Silent

if TYPE_CHECKING:
    from shardctl.checks.verify import Report as Verified
    from shardctl.topology.model import Topology

app = command_app()


@app.command()
def verify(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check",
            metavar="NAME",
            autocompletion=completion.checks,
            help="Run only this check; can be repeated.",
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all rows: every id, every key. Takes a long time.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings too.")] = False,
    plugin: Annotated[
        bool,
        typer.Option(
            "--nagios",
            help="Print one line with performance data; exit 0, 1, 2 or 3 as monitoring plugins "
            "do.",
        ),
    ] = False,
) -> None:
    """Compare topology, databases and poolers; report every difference with its fix.

    Changes nothing. An unreachable node is one finding, and all other nodes are checked. Exit code
    1 if there is an error.
    """
    from shardctl.checks.registry import CHECKS
    from shardctl.checks.verify import verify as examine
    from shardctl.cli import nagios, progress

    if plugin and (list_checks or output is Report.json):
        raise UsageError(
            "--nagios cannot be combined with --list or -o json", hint="leave out one of them"
        )
    if list_checks:
        print_table(("check", "finds"), [(c.name, c.about) for c in CHECKS.values()])
        return
    with nullcontext(Silent()) if plugin else progress.bars() as shown:
        topology = load_topology(ctx)
        report = examine(topology, check or [], deep=deep, progress=shown, notice=say)
    if not check:
        _record(topology, report)
    if plugin:
        state, line = nagios.of(report, strict=strict)
        print(line)
        raise typer.Exit(state)
    if output is Report.json:
        print_json(report.as_json())
    else:
        show(report)
    if not report.ok(strict=strict):
        raise typer.Exit(1)


def _record(topology: Topology, report: Verified) -> None:
    """Record the result for `metrics`; the log has it if that is impossible."""
    from shardctl.checks import last_verify
    from shardctl.cli import log

    try:
        last_verify.record(log.state_directory(), topology, report, at=time.time())
    except OSError as error:
        logging.getLogger(__name__).warning("cannot record the result for metrics: %s", error)


def show(report: Verified) -> None:
    """Print findings, gravest first, then what was examined."""
    from rich.padding import Padding
    from rich.text import Text

    from shardctl.cli.tables import COLOURS

    out = console()
    order = ["error", "warning", "note"]
    for finding in sorted(report.findings, key=lambda f: order.index(f.severity)):
        severity = (finding.severity, COLOURS.get(finding.severity, ""))
        said = f": {finding.check}: {found.subject(finding)}: {found.difference(finding)}"
        out.print(Text.assemble(severity, said, overflow="fold"))
        out.print(Padding(Text(finding.hint, overflow="fold"), (0, 0, 0, 2), expand=False))
    counts = report.counts()
    reported = ", ".join(plural(n, severity) for severity, n in counts.items() if n)
    what = "all is well" if report.ok(strict=True) else reported
    poolers = f" and {plural(report.poolers, 'pooler')}" if report.poolers else ""
    out.print(
        f"{what}: {plural(len(report.checks), 'check')} of {plural(report.shards, 'shard')} "
        f"on {plural(report.nodes, 'node')}{poolers} in {report.elapsed_ms / 1000:.1f} s",
        markup=False,
    )
