"""The router's face for threads is what is written from that for asyncio."""

from __future__ import annotations

from tests import router_face


def test_the_face_for_threads_is_written_from_that_for_asyncio() -> None:
    assert router_face.FILE.read_text() == router_face.written()
