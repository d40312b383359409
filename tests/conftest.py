"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import random
import signal
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator

# How quick an example is depends on what else the machine does: no test asserts a time.
# A run has the examples of the run before, unless SHARDCTL_TEST_SEED asks for other things, and
# for more of them: those of before have been tried.
_CHOSEN = bool(os.environ.get("SHARDCTL_TEST_SEED"))
settings.register_profile(
    "house", deadline=None, derandomize=not _CHOSEN, max_examples=200 if _CHOSEN else 40
)
settings.load_profile("house")

_CLOCK = {"monotonic", "perf_counter", "sleep", "Timer"}
"""What only tests that need a quiet machine use."""

pytest_plugins = [
    "tests.fixtures.again",
    "tests.fixtures.servers.postgres",
    "tests.fixtures.leftovers",
    "tests.fixtures.servers.sshd",
    "tests.fixtures.servers.pgbouncer",
    "tests.fixtures.servers.clones",
    "tests.fixtures.servers.streams",
    "tests.fixtures.fleets.pooled",
    "tests.fixtures.fleets.verify",
    "tests.fixtures.moves.own",
    "tests.fixtures.moves.preflight",
    "tests.fixtures.moves.fenced",
    "tests.fixtures.fleets.retired",
    "tests.fixtures.fleets.rows",
    "tests.fixtures.servers.managers",
    "tests.fixtures.fleets.routed",
    "tests.fixtures.photos",
    "tests.fixtures.django_photos.project",
]


def pytest_configure() -> None:
    """Let tests begin with the same signals and programs, however they were started."""
    _heed_signals()
    _find_psql()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in shardctl only: tests have none, and each worker would search them."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # `-m` leaves out what is marked here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what looks at the clock; put all in a random order, if SHARDCTL_TEST_SEED says so.

    Clients of a proof may sleep between what they do.
    """
    for item in items:
        proof = item.get_closest_marker("proof")
        if not proof and isinstance(item, pytest.Function) and _timed(item.function, set()):
            item.add_marker("timed")
    if seed := os.environ.get("SHARDCTL_TEST_SEED"):
        chance = random.Random(int(seed))  # noqa: S311  # an order is not a secret
        files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
        chance.shuffle(files)
        for tests in files:
            chance.shuffle(tests)
        items[:] = [test for tests in files for test in tests]


def _timed(function: FunctionType, seen: set[CodeType]) -> bool:
    """Tell whether a test, a function in it, or a helper in its file, measures a time or sleeps."""
    codes = [function.__code__]
    for code in codes:
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    names = {name for code in codes for name in code.co_names}
    seen.add(function.__code__)
    helpers = [function.__globals__.get(name) for name in names]
    return bool(_CLOCK & names) or any(
        _timed(one, seen)
        for one in helpers
        if isinstance(one, FunctionType)
        and one.__module__ == function.__module__
        and one.__code__ not in seen
    )


def _heed_signals() -> None:
    """Heed signals that a shell ignores for a job in the background, and `nohup` for any.

    Every process would inherit that, and tests send them. A process inherits no function.
    """
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGHUP, lambda *_: None),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def _find_psql() -> None:
    """Let guards of this machine find psql itself: Debian has a program in Perl before it.

    That takes five times as long as psql's start, and whoever logs in by SSH still gets it.
    """
    found = Path("/usr/lib/postgresql").glob("*/bin/psql")
    if newest := max((path.parent for path in found), key=_major, default=None):
        path = os.environ["PATH"].split(os.pathsep)
        os.environ["PATH"] = os.pathsep.join([str(newest), *(p for p in path if p != str(newest))])


def _major(directory: Path) -> int:
    return int(directory.parent.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the thousands of tests, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
