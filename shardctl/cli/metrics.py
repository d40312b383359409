"""`shardctl metrics`: the fleet's figures for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.log import log_file
from shardctl.cli.output import say

app = command_app()


@app.command()
def metrics(
    ctx: typer.Context,
    *,
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile",
            metavar="DIRECTORY",
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
