"""The cutover: the short part of a move in which ownership changes.

The order is the promise. Up to `decide` everything can be undone, by this process, by the guard
in the source, or by another operator: whichever commits first wins. `attempt.py` runs the
sub-steps; `sub_steps.py`, `stream_sub_steps.py` and `conclusion.py` implement them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import conclusion, promotion, stream, stream_sub_steps, sub_steps, undoing
from shardctl.moves.sub_step import Cutover, SubStep

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan

CLONE = Cutover(
    ready=(
        SubStep("open consoles", "logs in to every pooler's console, several times",
                sub_steps.log_in),
        SubStep("stage files", "puts the new file of aliases beside the old one, on every pooler's "
                "host", lambda at: at.pauses.stage()),
        SubStep("rehearse guards", "queries the target from every pooler's host, as a guard would",
                sub_steps.rehearse_guards),
    ),
    undoable=(
        SubStep("arm guards", "starts the guards on the poolers' hosts, and the one in the source",
                sub_steps.arm_guards, asks="s s s"),
        SubStep("logins", "waits until no pooler is logging in to a node for these aliases",
                lambda at: at.pauses.await_logins(), asks="p"),
        SubStep("pause", "pauses the aliases on all poolers and waits for their transactions",
                sub_steps.pause, asks="st p p", may_stop=True),
        SubStep("fence", "renames the moved schemas on the source, and commits `fenced`",
                sub_steps.put_up_fence, asks="s", may_stop=True),
        SubStep("drain", "waits for direct sessions that still write to the moved tables",
                sub_steps.drain, asks="s"),
        SubStep("mark", "commits `drained`, and records the position of the source's WAL",
                sub_steps.mark, asks="s"),
        SubStep("replay", "waits until the target has replayed up to that position",
                sub_steps.catch_up, asks="t"),
        SubStep("snapshot", "takes a snapshot of the target for the comparison",
                lambda at: promotion.hold_snapshot(at.context), asks="t"),
        SubStep("look", "checks that every alias is still paused, and the source's lock still held",
                sub_steps.look_again, asks="sp"),
        SubStep("decide", "commits `promoting` on the source: the point of no return",
                sub_steps.decide, asks="s", may_stop=True),
    ),
    decided=(
        SubStep("promote", "makes the target a primary",
                lambda at: promotion.take_over(at.context), asks="t",
                when=lambda at: not at.claimed),
        SubStep("claim", "makes the target the owner: new id blocks, names, map, `claimed`",
                sub_steps.claim, asks="t t", when=lambda at: not at.claimed),
        SubStep("open", "opens the target to applications, if the claim's message could not",
                lambda at: promotion.open_up(at.context), when=lambda at: not at.opened),
    ),
    concluding=(
        SubStep("route", "puts the new file into place on every pooler; RELOAD and RESUME in one "
                "packet", conclusion.route, asks="p p"),
        SubStep("serve", "waits until waiting clients have connections again", conclusion.serve),
        SubStep("settings", "checks that the target runs with its own files and settings",
                lambda at: promotion.settle(at.context)),
        SubStep("slot", "drops the replication slot on the source",
                lambda at: promotion.release(at.context)),
        SubStep("map", "writes the new owners into the map of all other nodes",
                lambda at: conclusion.spread_map(at.context)),
        SubStep("file", "writes the new owners into the topology file",
                lambda at: conclusion.write_file(at.context)),
        SubStep("disarm", "ends the guards on the poolers' hosts",
                lambda at: at.pauses.disarm(), after="route"),
    ),
    undo=undoing.SUB_STEPS,
)  # fmt: skip
"""The target is a clone, which is promoted."""

STREAM = Cutover(
    ready=CLONE.ready,
    undoable=(
        *CLONE.between("arm guards", "arm guards"),
        SubStep("ping", "sends a mark through the stream, and waits until it has arrived",
                stream_sub_steps.ping, asks="s t"),
        *CLONE.between("logins", "logins"),
        SubStep("pause", "pauses the aliases on all poolers and waits for their transactions",
                stream_sub_steps.pause, asks="st p p", may_stop=True),
        SubStep("fence", "locks the moved tables against writers, renames their schemas on the "
                "source, marks the stream, and commits `fenced`",
                stream_sub_steps.put_up_fence, asks="s", may_stop=True),
        SubStep("drain", "waits for those who write to the moved tables or make some all the same, "
                "and sees that the structure is what was copied", stream_sub_steps.drain),
        SubStep("standbys", "waits until every standby of the source that may be promoted has "
                "flushed the fence", stream_sub_steps.await_standbys, asks="s"),
        SubStep("arrive", "waits until the fence's mark has come through the stream: the target "
                "has all rows then", stream_sub_steps.catch_up, asks="t"),
        SubStep("snapshot", "takes the snapshot of the target for the comparison, which has come "
                "with it", lambda at: stream.hold_snapshot(at.context)),
        SubStep("look", "checks that every alias is still paused, and both locks still held",
                stream_sub_steps.look_again, asks="stp"),
        SubStep("decide", "commits `drained` and `promoting` on the source, with its clock and its "
                "sequences, and the same into the stream: the point of no return",
                stream_sub_steps.decide, asks="s", may_stop=True),
    ),
    decided=(
        SubStep("standbys again", "waits until those standbys have flushed the decision, too, "
                "as long as the budget lasts", stream_sub_steps.await_standbys_again,
                when=lambda at: at.began),
        SubStep("claim", "makes the target the owner: sequences, new id blocks, map, `claimed`; "
                "opens the shards", sub_steps.claim, asks="t", when=lambda at: not at.claimed),
    ),
    concluding=(
        *CLONE.between("route", "serve"),
        SubStep("stream", "drops subscription, slot and publication",
                lambda at: stream.release(at.context)),
        *CLONE.between("map", "disarm"),
    ),
    undo=undoing.SUB_STEPS,
)  # fmt: skip
"""The target follows by logical replication."""


def of(plan: MovePlan) -> Cutover:
    """Return the cutover of a move."""
    return STREAM if plan.streams else CLONE
