"""The strip: what `shardctl status --watch` reports, for every open page."""

import json
import subprocess
import sys
import threading
from datetime import datetime

from django.conf import settings
from django.http import StreamingHttpResponse

SHARDCTL = (sys.executable, "-m", "shardctl", "--topology", str(settings.TOPOLOGY))
_changed, _begun = threading.Condition(), threading.Lock()
_known = {"number": 0, "fleet": None, "pauses": []}


def events(_request):
    """Stream the fleet to a page, as server-sent events: at once, and whenever it changes."""
    if _begun.acquire(blocking=False):
        threading.Thread(target=_watch, daemon=True).start()

    def stream():
        seen = -1
        while True:
            with _changed:
                if _known["number"] == seen:
                    _changed.wait(timeout=15)
                seen, data = _known["number"], json.dumps(_known)
            yield f"data: {data}\n\n"

    return StreamingHttpResponse(
        stream(), content_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _watch():
    """Run the command for as long as this process runs, and publish what it reports."""
    watch = (*SHARDCTL, "status", "--watch", "0.5s", "--sample", "0", "-o", "json")
    moving = set()
    for line in subprocess.Popen(watch, stdout=subprocess.PIPE).stdout:
        found = json.loads(line)
        moves = [move for move in found["moves"] if move["state"] == "running"]
        nodes = [{key: n[key] for key in ("name", "state", "owned")} for n in found["nodes"]]
        _publish(fleet={"nodes": nodes, "moves": moves})
        over, moving = moving - {move["id"] for move in moves}, {move["id"] for move in moves}
        for pause in filter(None, map(_pause, over)):
            _publish(pauses=[*_known["pauses"][-9:], pause])


def _publish(**known):
    with _changed:
        if known != {key: _known[key] for key in known}:
            _known.update(known, number=_known["number"] + 1)
            _changed.notify_all()


def _pause(move):
    """Return when a move that is over made clients wait, and for how many ms; None if never."""
    show = (*SHARDCTL, "moves", "show", move, "-o", "json")
    shown = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    if shown["state"] == "aborted":
        return None
    begins = {step["name"]: step["started"] for step in shown["steps"]}
    at = datetime.fromisoformat(begins["cutover.pause"]).timestamp() * 1000
    return {key: shown[key] for key in ("shards", "source", "target")} | {
        "at": at,
        "ms": shown["report"]["pause_ms"] or 0,
    }
