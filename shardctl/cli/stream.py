"""A standard stream whose failure is reported once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """A text stream that fails once, and discards all later output.

    It calls `failed` with the error, which may raise one.
    """

    def __init__(self, stream: Any, failed: Callable[[OSError], None]) -> None:
        self._stream = stream
        self._failed = failed

    def __getattr__(self, name: str) -> Any:
        """Delegate all other attributes to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or discard."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._discard(error)
        return len(text)

    def flush(self) -> None:
        """Flush, or discard."""
        try:
            self._stream.flush()
        except OSError as error:
            self._discard(error)

    def _discard(self, error: OSError) -> None:
        # The buffered text would fail again with every flush, including the interpreter's last one.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        self._failed(error)
