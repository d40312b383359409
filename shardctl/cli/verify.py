"""`shardctl verify`: proof that the fleet is what the file says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import always_json, plural, print_json, print_table, say

if TYPE_CHECKING:
    from shardctl.checks.findings import Finding
    from shardctl.checks.verify import Report as Verified

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
            help="Only this check; can be given repeatedly.",
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="Name the checks and leave.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all rows: every id, every key. Takes long.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings too.")] = False,
) -> None:
    """Compare topology, databases and poolers; report every difference with what mends it.

    Changes nothing. A node that cannot be reached is one finding, and the others are checked
    all the same. Exit code 1 if there is an error.
    """
    from shardctl.checks.registry import CHECKS
    from shardctl.checks.verify import verify as examine
    from shardctl.cli.progress import bars

    if list_checks:
        print_table(("check", "finds"), [(c.name, c.about) for c in CHECKS.values()])
        return
    with always_json(output), bars() as progress:
        topology = load_topology(ctx)
        report = examine(topology, check or [], deep=deep, progress=progress, notice=say)
    if output is Report.json:
        print_json(report.as_json())
    else:
        show(report)
    if not report.ok(strict=strict):
        raise typer.Exit(1)


def show(report: Verified) -> None:
    """Print findings, gravest first, then what was examined."""
    order = ["error", "warning", "note"]
    for finding in sorted(report.findings, key=lambda f: order.index(f.severity)):
        print(f"{finding.severity}: {finding.check}: {_subject(finding)}: {_difference(finding)}")
        print(f"  {finding.hint}")
    counts = report.counts()
    told = ", ".join(plural(n, severity) for severity, n in counts.items() if n)
    what = "all is well" if report.ok(strict=True) else told
    poolers = f" and {plural(report.poolers, 'pooler')}" if report.poolers else ""
    print(
        f"{what}: {plural(len(report.checks), 'check')} of {plural(report.shards, 'shard')} "
        f"on {plural(report.nodes, 'node')}{poolers} in {report.elapsed_ms / 1000:.1f} s"
    )


def _subject(finding: Finding) -> str:
    from shardctl.topology import ranges

    parts = []
    if finding.pooler:
        parts.append(f"pooler {finding.pooler}")
    if finding.node:
        parts.append(f"node {finding.node}")
    if finding.shards:
        shards = ranges.of(finding.shards).replace(",", ", ")
        count = len(finding.shards)
        parts.append(f"shard {shards}" if count == 1 else f"{count} shards ({shards})")
    return ", ".join(parts) or "fleet"


def _difference(finding: Finding) -> str:
    what = f"{finding.object}: " if finding.object else ""
    if finding.severity == "note":
        return f"{what}{finding.actual}"
    return f"{what}{finding.actual}; should be: {finding.expected}"
