"""Whether a wheel and an sdist have what they should: `python tests/packaging/contents.py DIST`. Needs no package."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WANTED_IN_SDIST = (
    "LICENSE",
    "README.md",
    "README.zh.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "mkdocs.yml",
)


def tracked(folder: str) -> set[str]:
    """Files of a folder that are under version control."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split("\n")) - {""}


def version() -> str:
    text = (ROOT / "oneloop" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]  # type: ignore[index]


def problems_of_wheel(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = wheel.read(name).decode()
    files = {name for name in names if ".dist-info/" not in name}
    found = [f"the wheel lacks {name}" for name in sorted(tracked("oneloop") - files)]
    found += [f"the wheel has {name}" for name in sorted(files - tracked("oneloop"))]
    found += [] if any(name.endswith("licenses/LICENSE") for name in names) else ["the wheel lacks LICENSE"]
    return found + problems_of_metadata(metadata)


def problems_of_metadata(metadata: str) -> list[str]:
    head, _, description = metadata.partition("\n\n")
    found = [] if f"Version: {version()}\n" in head else [f"the metadata has another version than {version()}"]
    for label in ("Documentation", "Source", "Issues", "Changelog"):
        found += [] if f"Project-URL: {label}, https://" in head else [f"the metadata has no address for {label}"]
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    relative = [target for target in targets if not target.startswith(("https://", "#"))]
    found += [] if targets else ["the long description has no links"]
    return found + [f"the long description has the relative link {target}" for target in relative]


def problems_of_sdist(path: Path) -> list[str]:
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {*WANTED_IN_SDIST, *tracked("oneloop"), *tracked("docs"), *tracked("scripts"), *tracked("examples")}
    return [f"the sdist lacks {name}" for name in sorted(wanted - names)]


def main(words: list[str]) -> int:
    dist = Path(words[0])
    (wheel,), (sdist,) = dist.glob("oneloop-*.whl"), dist.glob("oneloop-*.tar.gz")
    problems = problems_of_wheel(wheel) + problems_of_sdist(sdist)
    print("\n".join(problems) or f"{wheel.name} and {sdist.name}: complete, version {version()}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
