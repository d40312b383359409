"""`make example`: a fleet, its data and the page, in a directory that is removed at the end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from shardctl.demo import tour
from shardctl.sandbox import poolers

HERE = Path(__file__).parent
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
TRY = """
The page:  http://127.0.0.1:{port}/
Sign in as one of its users, or sign up. Then let shards move under it, from another terminal:

  export SHARDCTL_TOPOLOGY={file} PATH={bin}:$PATH
  shardctl move-shards 24-31 --to b --keep-reverse 0   # streams 8 shards to a node that serves
  shardctl move-shards 48-63 --to c                    # splits node b by a clone on a spare node

Ctrl-C stops the servers and removes all of it.
"""


def run(*words):
    subprocess.run([sys.executable, *words], check=True)


def main():
    place = Path(tempfile.mkdtemp(prefix="shardctl-photos-"))
    place.chmod(0o755)  # root's servers run as another user, who must be able to enter
    file = place / "topology.yaml"
    os.environ |= {"SHARDCTL_TOPOLOGY": str(file), "DJANGO_RUNSERVER_HIDE_WARNING": "true"}
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        # On free ports. Without PgBouncer, clients connect to the nodes.
        tour.lay_out(place, poolers=poolers.program() is not None, example=HERE)
        run("-m", "shardctl", "sandbox", "up")
        run("-m", "shardctl", "init", "--yes")
        run(HERE / "manage.py", "migrate", "--verbosity", "0")
        run(HERE / "manage.py", "populate")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        print(TRY.format(port=port, file=file, bin=Path(sys.executable).parent), flush=True)
        run(HERE / "manage.py", "runserver", "--noreload", "--insecure", f"127.0.0.1:{port}")
    except subprocess.CalledProcessError:
        return 1  # the command has printed why
    except KeyboardInterrupt:
        return 0
    finally:
        print("stopping", flush=True)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if file.exists():
            run("-m", "shardctl", "sandbox", "down", "--delete", "--yes")
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
