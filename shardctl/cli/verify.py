"""`shardctl verify` and `metrics`: compare the fleet with the topology file; its figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import options, picture
from shardctl.cli.command import App, Context, load_topology
from shardctl.cli.log import log_file
from shardctl.cli.options import ReportOption
from shardctl.cli.output import plural, print_json, print_line, print_table, say
from shardctl.errors import Refused, UsageError
from shardctl.printable import one_line
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.checks.check import Finding
    from shardctl.checks.verify import Report as Verified


app = App()

_ORDER = ("error", "warning", "note")


@app.command()
def verify(
    ctx: Context,
    *,
    output: ReportOption = "table",
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name>",
            autocompletion=options.check_names,
            help="Run only this check; can be repeated.",
        ),
    ] = None,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    deep: Annotated[
        bool, typer.Option(help="Read all rows: every id, every key. Takes a long time.")
    ] = False,
    strict: Annotated[bool, typer.Option(help="Exit 1 for warnings too.")] = False,
    nagios: Annotated[
        bool, typer.Option(help="Print a line and exit 0 to 3, as monitoring plugins do.")
    ] = False,
) -> None:
    """Compare topology, databases and poolers; report every difference with its fix.

    Changes nothing. An unreachable node is one finding, and all other nodes are checked. Exit code
    1 if there is an error. With --nagios, 0 is OK, 1 a warning, 2 an error, 3 that verify itself
    failed.
    """
    from shardctl.checks.verify import CHECKS
    from shardctl.checks.verify import verify as examine
    from shardctl.cli.progress import bars

    ctx.obj.nagios = nagios
    if nagios and (output == "json" or list_checks or strict):
        raise UsageError(
            "--nagios excludes --output json, --list and --strict", hint="leave them out"
        )
    if list_checks:
        print_table(("check", "finds"), [(c.name, c.about) for c in CHECKS.values()])
        return
    with bars() as progress:
        topology = load_topology(ctx)
        report = examine(topology, check or [], deep=deep, progress=progress, notice=say)
    if not check:
        _keep(report)
    if nagios:
        raise typer.Exit(plugin(report))
    if output == "json":
        print_json(report.as_json())
    else:
        show(report)
    if not report.ok(strict=strict):
        raise typer.Exit(1)


def _keep(report: Verified) -> None:
    """Leave the numbers of findings to the next `metrics` of this user."""
    from shardctl.checks import metrics

    try:
        metrics.write(metrics.file_of(log_file().parent, report.cluster), metrics.of_verify(report))
    except (OSError, Refused) as error:  # what verify found is reported all the same
        say(f"shardctl: {error}")


def plugin(report: Verified) -> int:
    """Print the report as a monitoring plugin does, in a line; return the exit code.

    Performance data is `label=value;warning;critical;minimum`, as
    https://www.monitoring-plugins.org/doc/guidelines.html has it.
    """
    counts = report.counts()
    code = 2 if counts["error"] else 1 if counts["warning"] else 0
    text = _summary(report)
    if grave := [one for one in report.findings if one.severity != "note"]:
        first = min(grave, key=lambda one: _ORDER.index(one.severity))
        text += f"; {first.check}: {_subject(first)}: {_difference(first)}"
    figures = {
        "errors": f"{counts['error']};;0;0",
        "warnings": f"{counts['warning']};0;;0",
        "notes": f"{counts['note']};;;0",
        "nodes": f"{report.nodes};;;0",
        "shards": f"{report.shards};;;0",
        "poolers": f"{report.poolers};;;0",
        "time": f"{report.elapsed_ms / 1000:.3f}s;;;0",
    }
    data = " ".join(f"{label}={value}" for label, value in figures.items())
    shown = one_line(text).replace("|", "/")  # performance data begins at the first one
    print(f"SHARDCTL {('OK', 'WARNING', 'CRITICAL')[code]} - {shown} | {data}")
    return code


def _summary(report: Verified) -> str:
    """Count findings, and what was examined."""
    counts = report.counts()
    reported = ", ".join(plural(n, severity) for severity, n in counts.items() if n)
    what = "all is well" if report.ok(strict=True) else reported
    poolers = f" and {plural(report.poolers, 'pooler')}" if report.poolers else ""
    return (
        f"{what}: {plural(len(report.checks), 'check')} of {plural(report.shards, 'shard')} "
        f"on {plural(report.nodes, 'node')}{poolers} in {report.elapsed_ms / 1000:.1f} s"
    )


def show(report: Verified) -> None:
    """Print findings, gravest first, then what was examined."""
    for same in _alike(sorted(report.findings, key=lambda f: _ORDER.index(f.severity))):
        first = same[0]
        subjects = "; ".join(map(_subject, same))
        said = "; ".join(dict.fromkeys(map(_difference, same)))
        print_line(f"{first.severity}: {first.check}: {subjects}: {said}")
        print_line(f"  {first.hint}")
    print_line(_summary(report))


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Put notes about the same thing of several nodes or poolers together, for one line."""
    found: dict[object, list[Finding]] = {}
    for one in findings:
        note = one.severity == "note"
        key = (one.check, one.code, one.object, one.hint) if note else id(one)
        found.setdefault(key, []).append(one)
    return [*found.values()]


def _subject(finding: Finding) -> str:
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


metrics_app = App()


@metrics_app.command()
def metrics(
    ctx: Context,
    *,
    textfile: Annotated[
        Path | None,
        typer.Option(
            metavar="<directory>",
            help="Write shardctl-CLUSTER.prom there, at once, and print nothing.",
        ),
    ] = None,
) -> None:
    """Print the fleet's figures in Prometheus's text format.

    Changes nothing. Nodes and poolers that are down are figures, too: the exit code is 0. Findings
    are those of the last `verify` of all checks by the same user. With --textfile, node_exporter's
    textfile collector reads the file; run that from cron or a timer, as shardctl has no daemon.
    """
    from shardctl.checks import metrics as figures

    topology = load_topology(ctx)
    text = figures.read(topology)
    try:
        text += figures.file_of(log_file().parent, topology.cluster).read_text(encoding="utf-8")
    except FileNotFoundError:  # no verify has run
        pass
    except (OSError, UnicodeDecodeError) as error:  # after a crash of this host, it may be broken
        say(f"shardctl: cannot read the findings of the last verify: {error}")
    if textfile is None:
        print(text, end="")
    else:
        figures.write(figures.file_of(textfile, topology.cluster), text)
