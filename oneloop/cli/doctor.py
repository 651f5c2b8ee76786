"""oneloop doctor: the installed frameworks, their devices, and the features that each supports.

Each framework is checked in its own process, so that one that fails to import is reported as such, and frameworks that
conflict with each other are never loaded together.
"""

import argparse
import json
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..arguments import capabilities
from ..backends import registry
from ..backends.loading import load
from ..formats.terminal import printable
from ..secrets import clean_text


def command(options: argparse.Namespace) -> int:
    return run(options.json)


def installed(name: str) -> str | None:
    """The installed version of a framework's package, or None."""
    for package in registry.get(name).distributions:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def ask(name: str, timeout: float = 120.0) -> dict[str, Any]:
    """Check a framework in a subprocess: {"devices": {kind: count}} or {"error": text}."""
    code = f"import sys; from oneloop.cli.doctor import answer; answer({name!r})"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"error": f"no response within {timeout:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"error": clean_text(lines[-1]) if lines else f"exited with status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer(name: str) -> None:
    """In the subprocess: print the framework's devices as JSON."""
    devices = load(name).devices
    counts = {kind: devices.available(kind) for kind in registry.get(name).devices}
    print(json.dumps({"devices": {kind: count for kind, count in counts.items() if count}}))


def run(as_json: bool = False) -> int:
    """Print the findings; returns 0 if at least one framework is usable."""
    found: dict[str, Any] = {}
    for name in registry.names():
        spec, known = registry.get(name), installed(name)
        if known is None or not spec.is_installed:
            found[name] = {"version": None, "install": spec.install}
        else:
            found[name] = {"version": known, **ask(name)}
    rows = capabilities.table(registry.names())
    for name, facts in found.items():
        facts["cannot"] = {
            feature.title: {kind: why for kind, why in answers[name].items() if why and kind in facts["devices"]}
            for feature, answers in rows
            if "devices" in facts and any(answers[name][kind] for kind in facts["devices"])
        }
    usable = any("devices" in facts for facts in found.values())
    if as_json:
        print(json.dumps({"python": platform.python_version(), "frameworks": found}, indent=2))
    else:
        print(printable("\n".join(_text(found, len(rows)))))
    return 0 if usable else 1


def _text(found: dict[str, Any], features: int) -> list[str]:
    lines = [f"Python {platform.python_version()}, oneloop {version('oneloop')}"]
    for name, facts in found.items():
        title = registry.get(name).title
        if facts["version"] is None:
            lines += ["", f"{title}: not installed ({facts['install']})"]
            continue
        lines += ["", f"{title} {facts['version']}"]
        if "error" in facts:
            lines.append(f"  not usable: {facts['error']}")
            continue
        devices = ", ".join(f"{kind} ({count})" for kind, count in facts["devices"].items())
        lines += [f"  devices: {devices}", f"  supported: {features - len(facts['cannot'])} of {features} features"]
        for feature, reasons in facts["cannot"].items():
            lines += [f"  not supported on {kind}: {feature}: {why}" for kind, why in reasons.items()]
    return lines


if __name__ == "__main__":
    sys.exit(run("--json" in sys.argv[1:]))
