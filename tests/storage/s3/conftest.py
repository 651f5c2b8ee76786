import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HAS_S3 = find_spec("s3fs") is not None and find_spec("moto") is not None
collect_ignore_glob = [] if HAS_S3 else ["test_*.py"]  # bash scripts/storage has them
SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLE"


@pytest.fixture(scope="session")
def server():
    """moto's server on this machine, with a proxy before it."""
    import logging

    from moto.server import ThreadedMotoServer

    from tests.storage.s3.proxy import Proxy

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    proxy = Proxy(moto.get_host_and_port())
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    moto.stop()


@pytest.fixture
def proxy(server, monkeypatch, tmp_path):
    """Without faults, in an environment that leads to it."""
    import s3fs

    server.fault = None
    server.requests.clear()
    client = {"config_kwargs": {"read_timeout": 1, "connect_timeout": 1, "retries": {"max_attempts": 1}}}
    environment = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "AKIDTESTING",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3": json.dumps(client),
        "XDG_CACHE_HOME": str(tmp_path / "machine1"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    fsspec_config(client)
    yield server
    server.fault = None
    s3fs.S3FileSystem.clear_instance_cache()
    fsspec_config(None)


def fsspec_config(client):
    """fsspec reads the environment when it is imported."""
    from fsspec.config import conf

    conf.pop("s3", None)
    if client is not None:
        conf["s3"] = client


@pytest.fixture
def bucket(proxy, tmp_path):
    """An empty bucket: its name, and a client to look into it."""
    import s3fs

    client = s3fs.S3FileSystem(use_listings_cache=False)
    name = "b" + "".join(c for c in tmp_path.name.lower() if c.isalnum())[-30:] + os.urandom(4).hex()
    client.mkdir(name)
    proxy.requests.clear()
    return name, client


class Processes:
    """Runs in processes of their own: see job.py."""

    def __init__(self):
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.storage.s3.job"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )

    def run(self, call, output, started=None, **given):
        """Its exit status; `started` is called with its pid."""
        names = [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_", "XDG_"))]
        environment = {name: os.environ[name] for name in names}
        request = {"call": call, "given": given, "environment": environment, "output": str(output)}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        if started is not None:
            started(pid)
        return int(self._server.stdout.readline())

    def close(self):
        self._server.stdin.close()
        self._server.wait(30)


@pytest.fixture(scope="session")
def processes():
    found = Processes()
    yield found
    found.close()
