"""Messages on standard error: lines for people, or JSON objects for programs that collect logs."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from shardctl.cli.stream import Stream
from shardctl.ids import times

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAM = "shardctl: "
"""How a line about a problem begins."""


def written(
    level: str,
    message: str,
    *,
    hint: str = "",
    code: str | None = None,
    at: float | None = None,
    **more: Any,
) -> str:
    """Write one message, of Unix time `at` or of now; `hint` and `code` are null without one.

    >>> written("info", "done", at=0)
    '{"time":"1970-01-01T00:00:00.000Z","level":"info","message":"done","hint":null,"code":null}'
    """
    moment_ms = int((time.time() if at is None else at) * 1000)
    given = {"time": times.render(moment_ms), "level": level, "message": message}
    given |= {"hint": hint or None, "code": code} | more
    return json.dumps(given, separators=(",", ":"))


class Messages(Stream):
    """Standard error; with `--log-format json` it is no terminal, and each line is an object."""

    def __init__(self, stream: Any, *, as_json: Callable[[], bool]) -> None:
        """Guard a stream; `as_json` is asked for each text, because options are read late."""
        super().__init__(stream, lambda _: None)
        self._as_json = as_json
        self._begun = threading.local()
        self.plain = Stream(stream, lambda _: None)
        """The same stream for lines that are objects already."""

    @property
    def as_json(self) -> bool:
        """Whether lines become objects."""
        return self._as_json()

    def isatty(self) -> bool:
        """Return whether lines are folded, coloured and drawn over."""
        return not self.as_json and bool(self._stream.isatty())

    def write(self, text: str) -> int:
        """Write, or discard; a line becomes an object when it is complete."""
        if not self.as_json:
            return super().write(text)
        *lines, self._begun.text = f"{getattr(self._begun, 'text', '')}{text}".split("\n")
        for line in lines:
            self._line(line)
        return len(text)

    def flush(self) -> None:
        """Flush, or discard; a question is a line without an end."""
        rest, self._begun.text = getattr(self._begun, "text", ""), ""
        self._line(rest)
        super().flush()

    def _line(self, line: str) -> None:
        if line.strip():
            problem = line.startswith(_PROGRAM)
            self.put("warning" if problem else "info", line.removeprefix(_PROGRAM).strip())

    def put(self, level: str, message: str, *, hint: str = "", code: str | None = None) -> None:
        """Write one message as an object."""
        self.plain.write(f"{written(level, message, hint=hint, code=code)}\n")
