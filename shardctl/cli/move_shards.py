"""`shardctl move-shards`: copy, cut over in a tenth of a second, confirm."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardctl.cli import moving, options, picture
from shardctl.cli.command import App, Context, load_topology
from shardctl.cli.options import Duration, FinishReverseOption, dangerous, duration_option
from shardctl.cli.output import plural, say
from shardctl.errors import UsageError
from shardctl.meter import listed

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.check import Facts
    from shardctl.topology.model import Topology

app = App()

_KEEP_REVERSE = Duration(hours=1)
_SHOWN = 4
"""Aliases of each pooler that the plan lists."""


@app.command(cls=moving.Moving)
def move_shards(
    ctx: Context,
    shards: Annotated[
        str | None, typer.Argument(help="Shards of one node, for example 2-3,17.")
    ] = None,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="<node>", autocompletion=options.node_names, help="The target node."),
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="<node>",
            autocompletion=options.node_names,
            help="The source node, instead of SHARDS, with --half or --all.",
        ),
    ] = None,
    half: Annotated[
        bool, typer.Option(help="The upper half of each of the node's ranges, by size.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of the node's shards.")] = False,
    method: Annotated[
        Literal["stream", "clone"] | None,
        typer.Option(
            help="stream: copy only these shards, to a node that runs. clone: copy the whole "
            "server, onto a node without shards. Default: stream if the target is a running member "
            "of the cluster, else clone.",
        ),
    ] = None,
    retain: Annotated[
        Duration | None, duration_option("How long to keep retired schemas, for example 7d.")
    ] = None,
    keep_reverse: Annotated[
        Duration,
        duration_option(
            "With stream: for how long `moves reverse` can give the shards back, 0 for never."
        ),
    ] = _KEEP_REVERSE,
    finish_reverse: FinishReverseOption = False,
    rehearse_only: Annotated[
        bool,
        typer.Option(
            help="With stream: copy, compare every row, measure the pause; then remove it all."
        ),
    ] = False,
    duplicate_shared: Annotated[
        bool, dangerous("With clone: copy tables outside shards, too.")
    ] = False,
) -> None:
    """Move shards to another node: copy them, cut over, compare every row.

    The target decides how, unless --method does. To a node that runs as a member of the cluster,
    shardctl streams only these shards by logical replication: to move some shards, or empty a
    server. Onto a node without a server, it clones the whole source, and each side keeps its
    shards: to split or replace a full server.

    Clients of the poolers wait about a tenth of a second, and before that for transactions that
    are open on moved shards, at most --max-pause; none gets an error. Each node keeps the
    schemas that it no longer owns under retired names until `shardctl prune`. If the move is
    interrupted or killed at any moment, `shardctl moves resume` continues it; until the point of
    no return, `shardctl moves abort` undoes it.
    """
    from shardctl.moves import reverse_kept, service

    topology = load_topology(ctx)
    options = moving.options_of(
        ctx.obj,
        topology,
        retain_s=None if retain is None else retain.total_seconds(),
        clone_with=topology.move.clone_with,
        finish_reverse=finish_reverse,
        keep_reverse_s=keep_reverse.total_seconds(),
        rehearse_only=rehearse_only,
        duplicate_shared=duplicate_shared,
    )

    def decide(now: Topology) -> MovePlan:
        chosen = _shards(now, shards, source, half=half, everything=everything)
        return service.plan(now, chosen, to, options, method=method)

    topology, decided, facts = moving.planned(topology, decide)
    doing = "Rehearse the move of" if rehearse_only else "Move"
    finish = partial(reverse_kept.finish_each, topology, facts.reversible, notice=say)
    moving.start(
        ctx,
        topology,
        decided,
        facts,
        rows=_rows(decided, facts),
        plan=_json(facts),
        question=f"{doing} {plural(len(decided.shards), 'shard')} from {decided.source} to "
        f"{decided.target}?",
        first=finish if finish_reverse else None,
    )


def _shards(
    topology: Topology, text: str | None, source: str | None, *, half: bool, everything: bool
) -> list[int]:
    """Return the chosen shards: a list, half of a node's, or all of them."""
    from shardctl.checks import loads
    from shardctl.fleet import rebalance
    from shardctl.moves import plan
    from shardctl.state import lock
    from shardctl.topology import routes

    of_node = source is not None or half or everything
    if (text is not None) == of_node or (of_node and (source is None or half == everything)):
        raise UsageError(
            "expected SHARDS, or --from with --half or --all",
            hint="give one of these, for example --from a --half",
        )
    if text is not None:
        return list(routes.listed(topology, text))
    node = routes.node(topology, source or "")
    if everything:
        return list(node.shards)
    if len(node.shards) == 1:
        raise UsageError(
            f"node {node.name} owns only shard {node.shards[0]}, so --half has nothing to move",
            hint="use --all to move it",
        )
    purpose = lock.purpose("move-shards")
    measured = loads.measure(topology, sample_s=0, purpose=purpose, nodes=[node])
    return list(plan.half(rebalance.sizes_of(measured)))


def _rows(decided: MovePlan, facts: Facts) -> list[tuple[str, str]]:
    """Return the rows of the plan; one figure for the time would be that of idle machines."""
    from shardctl.moves.prediction import BESIDE

    least, most = (picture.duration(times * facts.predicted_s) for times in (1, BESIDE))
    rows = [
        ("method", decided.method),
        ("size of these shards", picture.size(sum(facts.sizes.values()))),
        ("to be copied", picture.size(facts.source_bytes)),
        ("takes", f"about {least}; beside other work, up to {most}"),
        ("free on the target", picture.size(facts.disk_free_bytes)),
        ("prune gives back", picture.size(facts.reclaimed_bytes)),
    ]
    for one in facts.poolers:
        paused, clients = listed(one.paused, most=_SHOWN), plural(one.clients, "client")
        does = f"pauses {paused} of its {one.aliases:,} aliases; {clients} now"
        rows.append((f"pooler {one.name}", does))
    return rows


def _json(facts: Facts) -> dict[str, Any]:
    return {
        "size_bytes": sum(facts.sizes.values()),
        "copy_bytes": facts.source_bytes,
        "disk_free_bytes": facts.disk_free_bytes,
        "predicted_copy_s": facts.predicted_copy_s,
        "predicted_s": facts.predicted_s,
        "reclaimed_bytes": facts.reclaimed_bytes,
        "poolers": [asdict(one) for one in facts.poolers],
    }
