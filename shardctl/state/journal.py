"""The journal of moves: on the source until the point of no return, then on the target too.

It has the one table of transitions between the states of a move. `advance` refuses what is not in
the table, a test compares it with all SQL that writes a state, and `docs/reference/moves.md` is
made from it.

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

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003  # a field type that class_row's readers resolve
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from shardctl.errors import ShardctlError
from shardctl.postgres import queries
from shardctl.state.lock import who

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardctl.postgres.connection import Connection

QUERIES = queries.load("shardctl.state", "journal.sql")

STREAM = "stream"
"""The method whose target serves already, and receives rows instead of a whole server."""
WAL_LIMIT = "wal_limit"
"""The key of a move's report under which the leash of its slot writes that it has dropped it."""
REHEARSAL = "rehearsal"
"""The key of a report under which a rehearsal is."""
UNDONE = "undone"
"""The key of a report with the sub-steps of a cutover that was undone."""
REVERSE_FROM = "reverse_from"
"""The key of a streamed move's report for the target's WAL position at the claim: all of the stream
was committed before it, and what clients change there is committed behind it."""


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
"""Every transition there is; `copy` brings a node's record over several at once."""


def leading_to(after: MoveState) -> tuple[MoveState, ...]:
    """Give the states from which a move may come to `after`.

    >>> [state.value for state in leading_to(MoveState.aborted)]
    ['reserved', 'undone']
    """
    return tuple(one.before for one in TRANSITIONS if one.after is after)


class MoveUnderWay(ShardctlError):
    """Another move of these shards, or from or to one of these nodes, is unfinished."""

    def __init__(self, node: str, move: str = "") -> None:
        what = f"move {move}" if move else "another move"
        super().__init__(
            f"node {node}: {what} is unfinished",
            hint="run `shardctl moves list` to see it, and `shardctl moves resume` or `abort` to "
            "end it",
        )


@dataclass(frozen=True, slots=True)
class Move:
    """One move as a node's journal has it.

    `schemas` and `retired` are in the order of `shards`; `plan` is what was decided before it
    began; `drained_to` is the WAL position that the target must have replayed.
    """

    id: str
    revision: int
    state: MoveState
    method: str
    source: str
    target: str
    shards: tuple[int, ...]
    schemas: tuple[str, ...]
    retired: tuple[str, ...]
    plan: dict[str, Any]
    who: str
    started: datetime
    changed: datetime
    ended: datetime | None
    drained_at: datetime | None
    drained_to: str | None
    proof: str | None
    report: dict[str, Any] | None

    @property
    def streams(self) -> bool:
        """Whether the moved shards follow their source by logical replication, in closed copies."""
        return self.method == STREAM

    def __post_init__(self) -> None:
        """Take what psycopg gives for what it is here."""
        object.__setattr__(self, "state", MoveState(self.state))
        for name in ("shards", "schemas", "retired"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step as it last ran; `took_ms` is None while it runs."""

    step: str
    state: str
    started: datetime
    took_ms: float | None
    error: str | None


def wal_limit(move: Move) -> dict[str, int] | None:
    """Give what the leash of a move has found, in bytes, if it has dropped the move's slot.

    None also past the point of no return, where the slot was of no use any more.
    """
    found: dict[str, int] | None = (move.report or {}).get(WAL_LIMIT)
    return found if move.state.undoable else None


def slot(move: str) -> str:
    """Name the replication slot of a move.

    >>> slot("5f3a9c1e")
    'shardctl_5f3a9c1e'
    """
    return f"shardctl_{move}"


def open_move(session: Connection, *, move: str, source: str, **columns: Any) -> None:
    """Write a new move, with `columns` as `Move` has them, into a node's journal.

    Raises MoveUnderWay.
    """
    given = _written(id=move, source=source, who=who(), **columns)
    try:
        session.execute(QUERIES["open"], given)
    except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation) as error:
        raise MoveUnderWay(source) from error


def read(session: Connection) -> list[Move]:
    """Read all moves of a node's journal, the newest first."""
    with session.cursor(row_factory=class_row(Move)) as cursor:
        return cursor.execute(QUERIES["moves"]).fetchall()


def find(session: Connection, move: str) -> Move | None:
    """Read one move; None where the node does not know it."""
    return next((one for one in read(session) if one.id == move), None)


def newest(copies: Iterable[Move]) -> Move | None:
    """Choose among the copies of one move on several nodes.

    A state that is final wins; otherwise the copy that was changed most often.
    """
    return max(copies, key=lambda one: (one.state.terminal, one.revision), default=None)


def advance(
    session: Connection,
    move: str,
    expected: Iterable[MoveState],
    state: MoveState,
    *,
    revision: int | None = None,
    drained_to: str | None = None,
    report: dict[str, Any] | None = None,
) -> bool:
    """Set a move's state where it is one of the expected; return whether it was.

    With `revision`, only where the move still has that revision. Raises AssertionError for a
    transition that is not in `TRANSITIONS`: that is a bug in the caller.
    """
    before = list(expected)
    if not set(before) <= set(leading_to(state)):
        raise AssertionError(f"a move does not go from {before} to {state}: see {__file__}")
    given = _written(
        id=move,
        expected=[one.value for one in before],
        state=state,
        closed=state.closed,
        revision=revision,
        drained_to=drained_to,
        report=report,
    )
    return session.execute(QUERIES["set_state"], given).rowcount == 1


def follow(session: Connection, move: str, version: int) -> bool:
    """Let a move follow a newer map, where its cutover has not begun; return whether that is so."""
    expected = [MoveState.reserved.value, MoveState.undone.value]
    given = {"id": move, "version": version, "expected": expected}
    return session.execute(QUERIES["follow"], given).rowcount == 1


def note(
    session: Connection,
    move: Move,
    *,
    proof: str | None = None,
    report: dict[str, Any] | None = None,
) -> None:
    """Write a proof or a report where the move still has its state; `changed` stays."""
    given = _written(id=move.id, state=move.state, proof=proof, report=report)
    session.execute(QUERIES["note"], given)


def mark_drained(session: Connection, move: str, *, revision: int) -> str | None:
    """Set state `drained` with this server's clock; give up to where its WAL is on the disk then.

    `revision` is the journal's when the fence was put up; None where it is another's by now. Only
    after the commit does the position cover what other sessions had committed with
    `synchronous_commit = off`.
    """
    marking = QUERIES["drained"].format(
        id=sql.Literal(move),
        revision=sql.Literal(revision),
        drained=sql.Literal(revision + 1),
    )
    rows = queries.rows_of_last(session, marking)
    return str(rows[0][0]) if rows else None


def copy(session: Connection, move: Move) -> None:
    """Bring a node's record of a move to a newer copy; an older one changes nothing."""
    values = {name: getattr(move, name) for name in Move.__dataclass_fields__}
    session.execute(QUERIES["copy"], _written(**values))


def record_step(
    session: Connection,
    move: str,
    step: str,
    state: str,
    *,
    took_ms: float | None = None,
    error: str | None = None,
) -> None:
    """Write down how a step went; it is for people, and no decision depends on it."""
    session.execute(
        QUERIES["record_step"],
        {"move": move, "step": step, "state": state, "took_ms": took_ms, "error": error},
    )


def record_undone(session: Connection, move: str, step: str) -> None:
    """Write down that a step was undone, if it had begun; its time and its error stay."""
    session.execute(QUERIES["record_undone"], {"move": move, "step": step})


def steps(session: Connection) -> dict[str, list[StepRecord]]:
    """Read the steps of all moves, by move; none of one that has not begun any."""
    found: dict[str, list[StepRecord]] = defaultdict(list)
    for move, *step in session.execute(QUERIES["steps"]):
        found[move].append(StepRecord(*step))
    return found


def _written(**given: Any) -> dict[str, Any]:
    """Give values of a move as psycopg writes them."""
    kinds: dict[type, Any] = {tuple: list, dict: Jsonb, MoveState: str}
    return {name: kinds.get(type(one), lambda it: it)(one) for name, one in given.items()}
