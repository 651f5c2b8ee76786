"""Two machines as two network namespaces of this one, joined by a virtual cable."""

import os
import subprocess

import pytest

NET = "10.213.77"


def ip(*words):
    return subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)


class Host:
    """A namespace with one address; commands run in it with `inside`."""

    def __init__(self, number):
        self.name = f"oneloop{os.getpid()}h{number}"
        self.card = f"ol{os.getpid() % 100000}v{number}"
        self.address = f"{NET}.{number}"

    def inside(self, command):
        return ["ip", "netns", "exec", self.name, *command]

    def cut_off(self):
        """Pull the cable: nothing arrives any more, and nobody is told."""
        ip("-n", self.name, "link", "set", self.card, "down")


@pytest.fixture
def two_hosts():
    hosts = Host(1), Host(2)
    try:
        made = [ip("netns", "add", host.name) for host in hosts]
        made.append(ip("link", "add", hosts[0].card, "type", "veth", "peer", "name", hosts[1].card))
        for host in hosts:
            made.append(ip("link", "set", host.card, "netns", host.name))
            made.append(ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.card))
            made.append(ip("-n", host.name, "link", "set", host.card, "up"))
            made.append(ip("-n", host.name, "link", "set", "lo", "up"))
        failed = next((step for step in made if step.returncode), None)
        if failed is not None:
            pytest.skip(f"network namespaces cannot be made here: {' '.join(failed.args)}: {failed.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            ip("netns", "del", host.name)
        ip("link", "del", hosts[0].card)
