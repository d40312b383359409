"""What this run has printed: an error that follows JSON has its place in standard error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Printed:
    json: bool = False


PRINTED = _Printed()
"""One object a run."""
