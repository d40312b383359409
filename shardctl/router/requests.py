"""The requests that a plan can make of the face that runs it.

A plan is a generator that yields requests and is sent their answers, or has their errors thrown
in. It does no I/O itself, so that threads and asyncio run the same plans.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from shardctl.errors import ShardctlError

if TYPE_CHECKING:
    from shardctl.topology.handles import NodeName

Parameters = Sequence[Any] | Mapping[str, Any] | None
Row = tuple[Any, ...]

Result = TypeVar("Result")
Plan = Generator["Request", Any, Result]
"""What it returns is its result."""


EXPECTED = (psycopg.Error, ShardctlError, TimeoutError)
"""What a plan that runs beside other plans may raise; anything else is a bug."""


class Answer(NamedTuple):
    """A statement's result: all of its rows, how many it touched, and its columns' types."""

    rows: list[Row]
    touched: int
    types: tuple[int, ...] = ()
    """OIDs, where they were asked for."""
    names: tuple[str, ...] = ()
    """The columns' names, likewise."""


class Execute(NamedTuple):
    """Run one statement on a node, in a transaction of its own; the answer is an Answer."""

    node: NodeName
    statement: bytes
    parameters: Parameters = None
    types: bool = False
    until: float | None = None
    """When to give up, on `time.monotonic`: it raises TimeoutError then. None is never."""
    seconds: float | None = None
    """How long to wait for a connection; None is the pool's timeout."""


class Hold(NamedTuple):
    """Take a connection with a node out of its pool; the answer is what `On` and `Release` take."""

    node: NodeName
    seconds: float | None
    """How long to wait for one; None is the pool's timeout."""
    until: float | None = None
    """When what runs on it is given up, on `time.monotonic`, and it is closed. None is never."""


class Reserve(NamedTuple):
    """Set places in pools aside for connections that are to be held at the same time.

    All of `wanted` or, while these are not free, none: a waiting plan holds nothing that other
    plans wait for. The answer, a Reserved, is what `Release` takes. Raises NoConnection.
    """

    wanted: Mapping[NodeName, int]
    seconds: float | None
    """How long to wait for them; None is the pools' timeout."""
    some: bool
    """Do without nodes that have no place, after half of that time."""


class On(NamedTuple):
    """Run a statement on a connection that is held; the answer is an Answer.

    One that was given back raises TimeoutError: the task was abandoned, and is too late.
    """

    held: Any
    statement: bytes
    parameters: Parameters = None
    types: bool = False


class Load(NamedTuple):
    """Send rows by COPY on a connection that is held; the answer is an Answer."""

    held: Any
    statement: bytes
    rows: Sequence[Sequence[Any]]


class Release(NamedTuple):
    """Give a held connection back, rolled back; once is enough, more changes nothing.

    The plan does not wait for a statement still running on it: it goes back when that ends.
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
    """Run a plan while no other `Alone` plan runs; the answer is its result."""

    plan: Plan[Any]


class Together(NamedTuple):
    """Run plans side by side; the answer is a list of what each returned or raised.

    A plan still running at `deadline` (of `time.monotonic`) counts as TimeoutError. Errors that
    are not psycopg's or shardctl's are not in the list, but raised.
    """

    plans: Sequence[Plan[Any]]
    width: int
    """How many at once."""
    deadline: float | None = None


class First(NamedTuple):
    """Run plans side by side until one returns a result that `wanted` accepts.

    The answer is a list of what was returned or raised until then, as of `Together`; the plans
    still running are abandoned.
    """

    plans: Sequence[Plan[Any]]
    wanted: Callable[[Any], bool]
    seconds: float
    """How long to wait for any of them."""


class Rows(NamedTuple):
    """Hand rows to the caller; there is no answer. Only the plan of a scatter does."""

    rows: Sequence[Row]


Request = (
    Execute | Reserve | Hold | On | Load | Release | Ask | Wait | Alone | Together | First | Rows
)
