"""`shardctl verify`: compare the fleet with the topology file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, picture
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import console, plural, print_json, print_table, say
from shardctl.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.checks.check import Finding
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
            help="Run only this check; can be repeated.",
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all rows: every id, every key. Takes a long time.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 for warnings too.")] = False,
) -> None:
    """Compare topology, databases and poolers; report every difference with its fix.

    Changes nothing. An unreachable node is one finding, and all other nodes are checked. Exit code
    1 if there is an error.
    """
    from shardctl.checks.verify import CHECKS
    from shardctl.checks.verify import verify as examine
    from shardctl.cli.progress import bars

    if list_checks:
        print_table(("check", "finds"), [(c.name, c.about) for c in CHECKS.values()])
        return
    with bars() as progress:
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
    from rich.text import Text

    from shardctl.cli.tables import COLOURS, paragraph

    out = console()
    order = ["error", "warning", "note"]
    for same in _alike(sorted(report.findings, key=lambda f: order.index(f.severity))):
        first = same[0]
        subjects = "; ".join(map(_subject, same))
        said = "; ".join(dict.fromkeys(map(_difference, same)))
        line = one_line(f"{first.severity}: {first.check}: {subjects}: {said}")
        shown = Text(paragraph(line, out.width))
        shown.stylize(COLOURS.get(first.severity, ""), 0, len(first.severity))
        out.print(shown)
        out.print(Text(paragraph(f"  {one_line(first.hint)}", out.width)))
    counts = report.counts()
    reported = ", ".join(plural(n, severity) for severity, n in counts.items() if n)
    what = "all is well" if report.ok(strict=True) else reported
    poolers = f" and {plural(report.poolers, 'pooler')}" if report.poolers else ""
    out.print(
        f"{what}: {plural(len(report.checks), 'check')} of {plural(report.shards, 'shard')} "
        f"on {plural(report.nodes, 'node')}{poolers} in {report.elapsed_ms / 1000:.1f} s",
        markup=False,
    )


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put notes about the same thing of several nodes or poolers together, for one line."""
    found: dict[object, list[Finding]] = {}
    for one in findings:
        note = one.severity == "note"
        key = (one.check, one.code, one.object, one.hint) if note else id(one)
        found.setdefault(key, []).append(one)
    return [*found.values()]


def _subject(finding: Finding) -> str:
    from shardctl.topology import ranges

    parts = []
    if finding.pooler:
        parts.append(f"pooler {finding.pooler}")
    if finding.node:
        parts.append(f"node {finding.node}")
    if finding.shards:
        shards = picture.shorten(ranges.of(finding.shards)).replace(",", ", ")
        count = len(finding.shards)
        parts.append(f"shard {shards}" if count == 1 else f"{count:,} shards ({shards})")
    return ", ".join(parts) or "fleet"


def _difference(finding: Finding) -> str:
    what = f"{finding.object}: " if finding.object else ""
    if finding.severity == "note":
        return f"{what}{finding.actual}"
    return f"{what}expected {finding.expected}, found {finding.actual}"
