"""Build the documentation site: `make docs`.

Stages the pages, generates the reference, runs Zensical in strict mode, checks the HTML once more, and adds every page as
Markdown beside its HTML together with an `llms.txt`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

from docs_site import config, links, reference, staging

ZENSICAL = staging.ROOT / "build" / "docs-venv" / "bin" / "zensical"


def main() -> None:
    """Build the site from the command line."""
    parser = argparse.ArgumentParser(description="Build the documentation site and check every link and anchor.")
    parser.add_argument("--zensical", type=Path, default=ZENSICAL, help="the site generator")
    parser.add_argument("--out", type=Path, default=staging.ROOT / "build", help="the folder that gets docs/ and site/")
    given = parser.parse_args()
    site = build(given.out.resolve(), given.zensical)
    pages = len(list(site.rglob("*.html")))
    print(f"built {site}: {pages} pages, {links.search_entries(site)} search entries, every link and anchor checked")


def build(out: Path, zensical: Path = ZENSICAL) -> Path:
    """Build the site in a folder and return the folder of its HTML; raise SystemExit if a link is broken."""
    staged, site = out / "docs", out / "site"
    staging.stage(staged)
    reference.write(staged / "reference")
    settings = out / "mkdocs.yml"
    settings.write_text(json.dumps(config.configuration(staged, staging.ROOT / "src"), indent=1))
    generate(settings, zensical)
    if found := links.problems(site):
        raise SystemExit("docs: broken links in the built site:\n" + "\n".join(found))
    write_markdown(staged, site)
    return site


def generate(settings: Path, zensical: Path) -> None:
    """Run the generator in strict mode; raise SystemExit with its messages if it refuses a page."""
    command = [zensical, "build", "--strict", "--clean", "-f", settings]
    done = subprocess.run(command, cwd=settings.parent, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        messages = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).partition("Traceback")[0]
        raise SystemExit(f"docs: zensical refuses the site:\n{messages}")


def write_markdown(staged: Path, site: Path) -> None:
    """Copy every page as Markdown beside its HTML, and list the pages in llms.txt."""
    for page in staged.rglob("*.md"):
        copy = site / page.relative_to(staged)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(reference.expanded(page.read_text()))
    lines = ["# headrace", "", f"> {first_sentence((site / 'index.md').read_text())}"]
    current = None
    for section, title, path in config.listed(staged):
        if section != current:
            lines += ["", f"## {section or title}", ""]
            current = section
        lines.append(f"- [{title}]({path}): {first_sentence((site / path).read_text())}")
    (site / "llms.txt").write_text("\n".join(lines) + "\n")


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose without its links."""
    prose = [part for part in re.split(r"\n\s*\n", text) if re.match(r"(?!```)[A-Za-z`*\[]", part)]
    found = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose[0].split())) if prose else ""
    return re.split(r"(?<=[.!?]) (?=[A-Za-z`*])", found)[0]


if __name__ == "__main__":
    main()
