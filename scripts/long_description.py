"""A build hook of hatchling: the README as the package's long description, with links that work outside the repository.

Relative links lead to the repository under [project.urls]: pages to its view of them, pictures to their bytes.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<open>!?\[[^\]]*\]\()(?P<target>(?!https?:|#|mailto:)[^)\s]+)(?=\))")


def absolute(text: str, source: str) -> str:
    """Markdown with absolute links; source is the repository's address, such as https://github.com/owner/name."""
    raw = source.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def link(found: re.Match[str]) -> str:
        is_picture = found["open"].startswith("!")
        base = f"{raw}/main" if is_picture else f"{source}/blob/main"
        return f"{found['open']}{base}/{found['target']}"

    return _LINK.sub(link, text)


class LongDescription(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata["urls"]["Source"]
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, source)}
