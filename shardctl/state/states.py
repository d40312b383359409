"""The states of a move, and the one table of transitions between them.

`journal.advance` refuses what is not in the table, a test compares it with all SQL that writes a
state, and `docs/reference/moves.md` is made from it.

The contract of two columns of `shardctl.move`, by which guards decide without shardctl:

- `revision` grows with every write to the row. A cutover knows the revision at which it began; its
  fence, its mark, its decision and its source's guard change nothing once the row has another. So
  whatever wakes up late is too late.
- `changed` moves with a transition and with nothing else. A pooler's guard routes to a target that
  read its configuration after `changed` of state `claimed` (`serves` in moves/claim.sql): a note
  in between that moved `changed` would leave clients with the source.

What is written often, such as progress, therefore never goes into `shardctl.move`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MoveState(StrEnum):
    """The state of a move; the order is that of a move that meets no trouble."""

    reserved = "reserved"
    undone = "undone"
    fenced = "fenced"
    drained = "drained"
    promoting = "promoting"
    claimed = "claimed"
    routed = "routed"
    unconfirmed = "unconfirmed"
    done = "done"
    aborted = "aborted"

    @property
    def terminal(self) -> bool:
        """Whether nothing more will happen to the move."""
        return self in (MoveState.done, MoveState.aborted)

    @property
    def closed(self) -> bool:
        """Whether the move is over, confirmed or not: another may begin."""
        return self.terminal or self is MoveState.unconfirmed

    @property
    def undoable(self) -> bool:
        """Whether the source still owns the shards, or can have them back."""
        return self in (
            MoveState.reserved, MoveState.undone, MoveState.fenced, MoveState.drained,
        )  # fmt: skip

    @property
    def claimed_by_target(self) -> bool:
        """Whether the target owns the shards."""
        return not self.undoable and self not in (MoveState.promoting, MoveState.aborted)

    @property
    def can(self) -> tuple[str, ...]:
        """The commands by which an operator goes on with a move that rests in this state."""
        if self.undoable:
            return ("resume", "abort")
        if self is MoveState.unconfirmed:
            return ("prune",)
        return () if self.terminal else ("resume",)


class Actor(StrEnum):
    """What makes a transition."""

    operator = "operator"
    """shardctl, at an operator's command."""
    source_guard = "source guard"
    """The session in the source that ends a cutover whose time is up."""
    pooler_guard = "pooler guard"
    """The process on a pooler's host: what it asks the target of a streamed move claims."""


@dataclass(frozen=True, slots=True)
class Transition:
    """That a move in state `before` may come to state `after`, what does it, and how."""

    before: MoveState
    after: MoveState
    who: tuple[Actor, ...]
    sentence: str


_OPERATOR = (Actor.operator,)
_EITHER = (Actor.operator, Actor.source_guard)
_S = MoveState

TRANSITIONS = (
    Transition(_S.reserved, _S.fenced, _OPERATOR, "the fence goes up on the source"),
    Transition(_S.undone, _S.fenced, _OPERATOR, "another attempt puts the fence up"),
    Transition(_S.reserved, _S.undone, _EITHER, "an attempt ends before its fence is up"),
    Transition(_S.undone, _S.undone, _EITHER, "another attempt ends before its fence is up"),
    Transition(_S.fenced, _S.undone, _EITHER, "the fence is lifted"),
    Transition(_S.fenced, _S.drained, _OPERATOR, "no transaction writes behind the fence"),
    Transition(_S.drained, _S.undone, _EITHER, "the fence is lifted"),
    Transition(_S.drained, _S.promoting, _OPERATOR, "the target may take over"),
    Transition(
        _S.promoting,
        _S.claimed,
        (Actor.operator, Actor.pooler_guard),
        "the target claims the shards",
    ),
    Transition(
        _S.drained, _S.claimed, _OPERATOR, "the target claims before it learns of `promoting`"
    ),
    Transition(_S.claimed, _S.routed, _OPERATOR, "poolers and nodes know it"),
    Transition(_S.routed, _S.done, _OPERATOR, "all rows were equal on both sides"),
    Transition(_S.routed, _S.unconfirmed, _OPERATOR, "rows were not compared, or differ"),
    Transition(_S.unconfirmed, _S.done, _OPERATOR, "`prune` has dropped all that was retired"),
    Transition(_S.reserved, _S.aborted, _OPERATOR, "`moves abort`"),
    Transition(_S.undone, _S.aborted, _OPERATOR, "`moves abort`"),
)
"""Every transition there is; `journal.copy` brings a node's record over several at once."""

_ALLOWED = frozenset((one.before, one.after) for one in TRANSITIONS)


def require(before: MoveState, after: MoveState) -> None:
    """See that the table has a transition; its absence is a bug in the caller.

    >>> require(MoveState.claimed, MoveState.undone)
    Traceback (most recent call last):
    ...
    AssertionError: a move does not go from claimed to undone: see shardctl/state/states.py
    """
    if (before, after) not in _ALLOWED:
        raise AssertionError(
            f"a move does not go from {before} to {after}: see shardctl/state/states.py"
        )


def leading_to(after: MoveState) -> tuple[MoveState, ...]:
    """Give the states from which a move may come to `after`.

    >>> [state.value for state in leading_to(MoveState.aborted)]
    ['reserved', 'undone']
    """
    return tuple(one.before for one in TRANSITIONS if one.after is after)
