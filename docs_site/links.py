"""Check the built site: every link and anchor leads somewhere, and no page loads anything from another host."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class _Page(HTMLParser):
    """The anchors of a page, what it links to and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in LOADS and LOADS[tag] in given and given.get("rel") != "canonical":
            self.loads.append(given[LOADS[tag]])


def problems(site: Path) -> list[str]:
    """Return what is wrong with the links of a built site, one line each."""
    pages = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site).as_posix()
        found += [f"{where} loads {load} from another host" for load in page.loads if urlsplit(load).netloc]
        for link in [*page.links, *page.loads]:
            if fault := _fault(link, path, pages, site):
                found.append(f"{where} links to {link}: {fault}")
    return found


def _fault(link: str, path: Path, pages: dict[Path, _Page], site: Path) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if parts.path.startswith("/"):
        target = site / parts.path.lstrip("/")
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        return "there is no such page"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return "the page has no such anchor"
    return None


def search_entries(site: Path) -> int:
    """Return how many entries the search index has."""
    return len(json.loads((site / "search.json").read_text())["items"])
