"""Only one run at a time may upload to a URL. On a disk the system releases the lock of a process that is killed; here
the run renews its lease, and one that is no longer renewed is void."""

import contextlib
import hashlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from typing import Any

from ..errors import StorageError
from ..formats.terminal import printable
from .remote import RemoteDirectory, clean

logger = logging.getLogger(__name__)

NAME = ".oneloop-lock"
RENEWED = 15.0  # seconds between two renewals
EXPIRY = 60.0  # seconds without a renewal after which another run may take it
PATIENCE = 10.0  # seconds in which an interrupted run may upload its last checkpoint
POLL_SECONDS = 1.0
_held: set[str] = set()  # tokens of this process


class Lease:
    """A conditional put: of several runs that create the object, the storage lets one succeed."""

    def __init__(self, remote: RemoteDirectory) -> None:
        self.remote = remote
        self.is_lost = False  # another run has taken it, since it was not renewed in time
        self._token = uuid.uuid4().hex
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self._claim = ("", 0, 0.0)  # to the lease of a dead run: its digest, the number of the claim, since when

    def acquire(self, patience: float | None = None) -> bool:
        """Whether no other run has it. Waits until one that is not renewed is void. Without conditional puts, a warning
        and nothing is checked."""
        if not self.remote.can_create:
            logger.warning(
                "%s cannot be locked: this storage has no conditional writes. Make sure that no other run has the "
                "same output_dir, since two runs would delete each other's checkpoints.",
                self.remote.url,
            )
            return True
        deadline = time.monotonic() + (PATIENCE if patience is None else patience)
        seen, since = None, time.monotonic()
        while not self._create():
            current = self._current()
            if current is None or current.get("token") in _held:  # just released; or by a Trainer of this process
                if current is not None:
                    return True
                continue
            if current != seen:
                is_first, seen, since = seen is None, current, time.monotonic()
                if is_first:
                    logger.warning("%s is in use by %s; waiting for it to end.", self.remote.url, _holder(current))
                elif time.monotonic() >= deadline:
                    return False  # it was renewed while we waited
            if (_is_dead(current) or time.monotonic() - since >= EXPIRY) and self._remove_dead(current):
                logger.warning("The run that used %s has died (%s).", self.remote.url, _holder(current))
                continue
            time.sleep(POLL_SECONDS)
        _held.add(self._token)
        self._thread = threading.Thread(target=self._renew, name="oneloop-lease", daemon=True)
        self._thread.start()
        return True

    def _remove_dead(self, dead: dict[str, Any]) -> bool:
        """Remove the lease of a dead run, of which others may be waiting too: the storage lets one of them create the
        claim to it. A claim whose owner died as well is void like a lease, and the next number is free."""
        digest = hashlib.sha256(json.dumps(dead, sort_keys=True).encode()).hexdigest()[:16]
        claimed, number, since = self._claim
        if claimed != digest:
            self._claim = digest, 0, time.monotonic()
        elif time.monotonic() - since >= EXPIRY:
            self._claim = digest, number + 1, time.monotonic()
        names = [f"{NAME}-claim-{digest}-{number}" for number in range(self._claim[1] + 1)]
        try:
            self.remote.create(names[-1], self._token.encode())
        except FileExistsError:  # perhaps ours, as in _create
            with contextlib.suppress(FileNotFoundError):
                if self.remote.read(names[-1]) != self._token.encode():
                    return False
        # A former owner of the claim gave it up after it had removed the lease: what is there now is not the dead one.
        is_same = self._current() == dead
        if is_same:
            self.remote.delete([NAME])
        self.remote.delete(names)
        return is_same

    def holder(self) -> str:
        return _holder(self._current() or {})

    def release(self) -> None:
        """Give up the lease."""
        if self._thread is None:
            return
        self._ends.set()
        self._thread.join()
        self._thread = None
        _held.discard(self._token)
        if not self.is_lost:
            with contextlib.suppress(OSError):  # then it becomes void
                self.remote.delete([NAME])

    def _create(self) -> bool:
        try:
            self.remote.create(NAME, self._data())
        except FileExistsError:  # perhaps ours: the answer to the first attempt may have been lost
            return (self._current() or {}).get("token") == self._token
        except OSError as error:
            raise StorageError(None, f"cannot write to {self.remote.url}: {clean(error)}") from None
        return True

    def _data(self) -> bytes:
        return json.dumps(
            {
                "token": self._token,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "machine": _machine(),
                "renewed": uuid.uuid4().hex,  # no time: clocks of machines differ, so others watch it change
            }
        ).encode()

    def _current(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.remote.read(NAME))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _renew(self) -> None:
        while not self._ends.wait(RENEWED):
            try:
                current = self._current()
                if current is not None and current.get("token") != self._token:
                    self.is_lost = True
                    logger.error(
                        "%s has been taken by %s, since this run could not renew its lease for more than %d seconds. "
                        "This run continues, but uploads nothing more; its checkpoints are in the local directory.",
                        self.remote.url,
                        _holder(current),
                        EXPIRY,
                    )
                    return
                self.remote.write(NAME, self._data())
            except OSError as error:  # tried again
                logger.debug("The lease of %s was not renewed: %s", self.remote.url, clean(error))


def _holder(current: dict[str, Any]) -> str:
    host, pid = current.get("host"), current.get("pid")
    return printable(f"another run, process {pid} on {host}") if host and pid else "another run"


def _machine() -> str:
    """This machine since it was booted, and the container: numbers of processes are the same only within it."""
    found = [socket.gethostname()]
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            found.append(f.read().strip())
        found.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(found)


def _is_dead(current: dict[str, Any]) -> bool:
    """Whether the process was on this machine and is gone."""
    pid = current.get("pid")
    if current.get("machine") != _machine() or not isinstance(pid, int) or pid <= 0:
        return False
    if pid == os.getpid():
        return True  # a former process with our number: our own leases are known
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"  # killed, and its parent has not looked yet
    except (ProcessLookupError, FileNotFoundError):
        return True
    except (OSError, IndexError):
        return False
