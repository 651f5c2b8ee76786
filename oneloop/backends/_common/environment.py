"""What a framework wants to find in the environment. None is imported here."""

import os
from importlib.util import find_spec


def prepare() -> None:
    """On AMD processors, let the MKL that Paddle brings use the kernels for AVX2; what the user has set stays.

    Otherwise it takes those for any processor, and matrix products take two to three times as long. The variable is
    read at the first product, so it is not too late when Paddle has been imported.
    """
    wanted = "MKL_DEBUG_CPU_TYPE"
    if wanted not in os.environ and find_spec("paddle") is not None and _is_amd():
        os.environ[wanted] = "5"


def _is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
            return "AuthenticAMD" in f.read(512)
    except OSError:  # not Linux, where Paddle has other kernels
        return False
