"""Makes a site of the pages in docs/, which are written to be read in the repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

SOURCE = "https://github.com/oncegate/oncegate/blob/main/"
ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\(|src=\"|href=\")([^)\s\"#:]+)((?:#[^)\s\"]*)?[)\"])")


def on_files(files, config):
    """README.md is the first page. What is no page or picture is no part of the site."""
    for file in list(files):
        if file.src_uri.endswith((".go", ".txt")):
            files.remove(file)
    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links that leave docs/ lead to the source."""
    here = "" if page.file.src_uri == "index.md" else posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    base = posixpath.dirname(page.file.src_uri) or "."

    def follow(match):
        before, target, after = match.groups()
        there = posixpath.normpath(posixpath.join(here, target))
        if there == "README.md":
            there = "docs/index.md"
        page_name = there.removeprefix("docs/")
        if there.startswith("docs/") and files.get_file_from_path(page_name):
            return before + posixpath.relpath(page_name, base) + after
        if (ROOT / there).exists() or there == "docs/index.md":
            return before + SOURCE + there + after
        return match.group(0)

    # Blocks of code stay as they are.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(follow, part) for part in parts)
