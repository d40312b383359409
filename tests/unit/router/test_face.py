"""The router for threads is what is written from that for asyncio."""

from __future__ import annotations

import pytest

from tests import router_face


@pytest.mark.parametrize("name", router_face.names())
def test_the_router_for_threads_is_written_from_that_for_asyncio(name: str) -> None:
    assert (router_face.TARGET / name).read_text() == router_face.written(name)
