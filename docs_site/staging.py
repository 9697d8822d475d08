"""Stage the Markdown of the repository for the site.

Invariant: every relative link of a staged page leads to a staged page or picture. Pages of `docs/` keep their paths. A link
to any other file of the repository leads to a generated page that shows the file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RENAMED = {"README.md": "overview.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".json": "json"}
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)")
FENCE = re.compile(r"(^```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)
SHOWN_BYTES = 200_000
HOME_LINKS = {  # phrases of the home page, and the generated pages that they lead to on the site
    "every public name": "reference/streams.md",
    "every command-line option": "reference/commands.md",
    "every field of progress": "reference/records.md",
}


def stage(folder: Path) -> None:
    """Write the pages of the repository into an empty folder, with links that fit the site."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS, folder)
    done: set[Path] = set()
    waiting = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in RENAMED)]
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        text, linked = _page(source)
        page = folder / staged_path(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
        waiting += linked


def staged_path(source: Path) -> str:
    """Return where a file of the repository is found below the staged folder."""
    if source.is_relative_to(DOCS):
        path = source.relative_to(DOCS).as_posix()
        return f"{path}/index.md" if source.is_dir() else path
    path = source.relative_to(ROOT).as_posix()
    return RENAMED.get(path) or (f"files/{path}/index.md" if source.is_dir() else f"files/{path}.md")


def _page(source: Path) -> tuple[str, list[Path]]:
    """Return the staged text of a file or folder, and what else it needs."""
    if source.suffix == ".md":
        text, needed = _relinked(source.read_text(), source)
        return (_with_reference(text) if source == DOCS / "index.md" else text), needed
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        inside = sorted(path for path in source.iterdir() if path.suffix in {".md", *LANGUAGES} - {".json"})
        lines = "\n".join(f"- [{path.name}]({_relative(path, source)})" for path in inside)
        return f"# {name}\n\n{lines}\n", inside
    text = source.read_text()
    if len(text) > SHOWN_BYTES:
        raise SystemExit(f"docs: a page links to {name}, which has {len(text):,} characters; link to a smaller file")
    return f"# {name}\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text.rstrip()}\n````\n", []


def _with_reference(text: str) -> str:
    """Return the home page with links to generated pages, which the repository does not have."""
    for phrase, page in HOME_LINKS.items():
        text = text.replace(phrase, f"[{phrase}]({page})")
    return text


def _relinked(text: str, source: Path) -> tuple[str, list[Path]]:
    """Return a page with links as staged, and the files that need a page of their own."""
    needed: list[Path] = []

    def replace(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[2]))
        if not target.exists():
            raise SystemExit(f"docs: {source.relative_to(ROOT)} links to {match[2]!r}, which does not exist")
        if target.suffix in {".svg", ".png", ".gif"}:
            return match[1] + _relative(target, source)
        needed.append(target)
        return match[1] + _relative(target, source)

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(replace, part) for part in parts[::2]]
    return "".join(parts), needed


def _relative(target: Path, source: Path) -> str:
    return os.path.relpath(staged_path(target), Path(staged_path(source)).parent)
