"""`make example`: a fleet, its data and the page, in a directory that is removed at the end."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

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


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


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
        ports = free_ports(6)  # of the page, four nodes and the pooler
        text = (HERE / "topology.yaml").read_text()
        if not poolers.available():  # then clients connect to the nodes
            text = text.partition("poolers:")[0]
        file.write_text(re.sub(r"(?<=port: )\d+", lambda _: ports.pop(), text))
        shutil.copytree(HERE / "migrations", place / "migrations")
        run("-m", "shardctl", "sandbox", "up")
        run("-m", "shardctl", "init", "--yes")
        run(HERE / "manage.py", "migrate", "--verbosity", "0")
        run(HERE / "manage.py", "populate", *sys.argv[1:])
        print(TRY.format(port=ports[0], file=file, bin=Path(sys.executable).parent), flush=True)
        run(HERE / "manage.py", "runserver", "--noreload", "--insecure", f"127.0.0.1:{ports[0]}")
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
