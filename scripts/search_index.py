"""A hook of MkDocs: Chinese has no spaces between words, so each character becomes a term of the search index."""

import json
import re
from pathlib import Path
from typing import Any

BETWEEN = re.compile(r"(?<=[\u4e00-\u9fff])(?=[\u4e00-\u9fff])")  # two characters


def on_post_build(config: Any, **_: Any) -> None:
    """Put zero-width spaces between characters, which separate terms and are not seen in what was found."""
    path = Path(config["site_dir"]) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for entry in index["docs"]:
        entry |= {key: BETWEEN.sub("\u200b", entry[key]) for key in ("title", "text")}
    path.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
