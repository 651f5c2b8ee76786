"""The peak of a device in floating-point operations per second, for the model FLOPs utilization (MFU)."""

# Dense matrix products in half precision, from the data sheets; the first name that is part of the device's counts.
_HALF = (
    ("B200", 2250e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("H200", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L4", 121e12),
    ("A40", 150e12),
    ("A30", 165e12),
    ("V100", 125e12),
    ("T4", 65e12),
    ("RTX 4090", 165e12),
)


def peak_flops(given: float | None, title: str | None, in_half: bool) -> float | None:
    """device_peak_flops if it is given; otherwise that of a known GPU in half precision, or None."""
    if given is not None:
        return given
    if title is None or not in_half:
        return None
    return next((peak for name, peak in _HALF if name in title), None)
