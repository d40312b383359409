"""The log's lines as objects; `log` imports it when it is needed, for `logging` takes time."""

from __future__ import annotations

import logging

from shardctl.cli import messages


class Objects(logging.Formatter):
    """Writes a record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the object, with the trace of an exception behind the message."""
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        return messages.written(
            record.levelname.lower(),
            message,
            at=record.created,
            logger=record.name,
            process=record.process,
        )
