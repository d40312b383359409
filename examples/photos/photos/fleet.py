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
_latest = {"text": ""}


def events(_request):
    """Stream the fleet to a page, as server-sent events: at once, and whenever it changes."""
    if _begun.acquire(blocking=False):
        threading.Thread(target=_watch, daemon=True).start()

    def stream():
        seen = ""
        while True:
            with _changed:
                _changed.wait_for(lambda old=seen: _latest["text"] != old, timeout=15)
                seen = _latest["text"]
            yield f"data: {seen}\n\n" if seen else ": nothing is known yet\n\n"

    return StreamingHttpResponse(
        stream(), content_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _watch():
    """Run the command for as long as this process runs, and publish what it reports."""
    watch = (*SHARDCTL, "status", "--watch", "500ms", "--sample", "0", "-o", "json")
    moving, pauses = set(), []
    for line in subprocess.Popen(watch, stdout=subprocess.PIPE).stdout:
        found = json.loads(line)
        moves = [move for move in found["moves"] if move["state"] == "running"]
        nodes = [{key: n[key] for key in ("name", "state", "owned")} for n in found["nodes"]]
        over, moving = moving - {move["id"] for move in moves}, {move["id"] for move in moves}
        pauses += filter(None, map(_pause, over))
        with _changed:
            _latest["text"] = json.dumps({"nodes": nodes, "moves": moves, "pauses": pauses[-9:]})
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
