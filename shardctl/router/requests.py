"""What a plan asks of the face that runs it: the whole language between the two.

A plan is a generator that yields requests and is sent their answers, or has their errors thrown
in. It does nothing else with the world, so that threads and asyncio run the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from shardctl.topology.model import NodeName

Parameters = Sequence[Any] | Mapping[str, Any] | None
Row = tuple[Any, ...]

Result = TypeVar("Result")
Plan = Generator["Request", Any, Result]
"""What it returns is its result."""


EXPECTED = (psycopg.Error, ShardctlError, TimeoutError)
"""What a plan that runs beside others may raise; anything else is a bug."""


class Answer(NamedTuple):
    """What a statement gave: all of its rows, how many it touched, and its columns' types."""

    rows: list[Row]
    touched: int
    types: tuple[int, ...] = ()
    """OIDs, where they were asked for."""


class Execute(NamedTuple):
    """Run one statement on a node, in a transaction of its own; the answer is an Answer."""

    node: NodeName
    statement: bytes
    parameters: Parameters = None
    types: bool = False
    until: float | None = None
    """When to give up, on `time.monotonic`: it raises TimeoutError then. None is never."""
    seconds: float | None = None
    """How long to wait for a connection; None is as long as the pool says."""


class Hold(NamedTuple):
    """Take a connection with a node out of its pool; the answer is what `On` and `Release` take."""

    node: NodeName
    seconds: float | None
    """How long to wait for one; None is as long as the pool says."""
    until: float | None = None
    """When what runs on it is given up, on `time.monotonic`, and it is closed. None is never."""


class Reserve(NamedTuple):
    """Set places in pools aside for connections that are to be held at the same time.

    All that are wanted or, while these are not free, none: whoever waits has nothing that others
    wait for. The answer, a Reserved, is what `Release` takes. Raises NoConnection.
    """

    wanted: Mapping[NodeName, int]
    seconds: float | None
    """How long to wait for them; None is as long as the pools say."""
    some: bool
    """Do without nodes that have no place, after half of that time."""


class On(NamedTuple):
    """Run a statement on a connection that is held; the answer is an Answer.

    One that was given back raises TimeoutError: a task that nobody waits for comes too late.
    """

    held: Any
    statement: bytes
    parameters: Parameters = None
    types: bool = False


class Begin(NamedTuple):
    """Begin a transaction on a connection that is held; the answer is psycopg's, to be exited."""

    held: Any


class Release(NamedTuple):
    """Give a held connection back, rolled back; once is enough, more changes nothing.

    Nobody waits for what still runs on it: it goes back when that has ended.
    """

    held: Any


class Ask(NamedTuple):
    """Run a statement on a connection of its own; the answer is an Answer."""

    conninfo: str
    statement: bytes


class Wait(NamedTuple):
    """Do nothing for so many seconds."""

    seconds: float


class Alone(NamedTuple):
    """Run a plan while nobody else runs one so; the answer is its result."""

    plan: Plan[Any]


class Together(NamedTuple):
    """Run plans side by side; the answer is a list of what each returned or raised.

    What has not ended at `deadline` (of `time.monotonic`) raised TimeoutError. Errors that are
    none of psycopg's or shardctl's are not in the list, but raised.
    """

    plans: Sequence[Plan[Any]]
    width: int
    """How many at once."""
    deadline: float | None = None


class First(NamedTuple):
    """Run plans side by side until one returns what is wanted.

    The answer is a list of what was returned or raised until then, as of `Together`; the others
    are left to themselves.
    """

    plans: Sequence[Plan[Any]]
    wanted: Callable[[Any], bool]
    seconds: float
    """How long to wait for any of them."""


class Rows(NamedTuple):
    """Hand rows to the caller; there is no answer. Only the plan of a scatter does."""

    rows: Sequence[Row]


Request = (
    Execute | Reserve | Hold | On | Begin | Release | Ask | Wait | Alone | Together | First | Rows
)
