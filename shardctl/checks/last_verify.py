"""The last complete run of `verify` of one topology file, in the state directory of this user."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks.findings import Severity
from shardctl.hosts import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardctl.checks.verify import Report
    from shardctl.topology.model import Topology

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastVerify:
    """When it ended, in Unix time, and how many findings it had, by severity."""

    at: float
    counts: Mapping[str, int]


def file(directory: Path, topology: Topology) -> Path:
    """Name the file of one topology: two clusters may have the same name."""
    path = str(topology.path.resolve())
    return directory / f"verify-{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"


def record(directory: Path, topology: Topology, report: Report, *, at: float) -> None:
    """Record a complete run that ended at this Unix time; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = {
        "format": 1,
        "topology": str(topology.path.resolve()),
        "cluster": topology.cluster,
        "at": at,
        "counts": report.counts(),
    }
    replacing.write(file(directory, topology), f"{json.dumps(found)}\n", mode=0o600)


def read(directory: Path, topology: Topology) -> LastVerify | None:
    """Read the last run; None where none was recorded, or its file cannot be read."""
    path = file(directory, topology)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        counts = {severity.value: int(found["counts"][severity]) for severity in Severity}
        return LastVerify(float(found["at"]), counts)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("cannot read the result of the last verify: %s: %s", path, error)
        return None
