"""The site builds, lists every page, has no broken link, and loads nothing from another host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import headrace as hr
from docs_site import build, config, links, reference, staging


def test_the_navigation_lists_every_page(tmp_path: Path):
    pages = {page.relative_to(staging.DOCS).as_posix() for page in staging.DOCS.rglob("*.md")}
    pages = {page for page in pages if not page.startswith("measured/")}  # linked from PERFORMANCE.md
    generated = {
        "overview.md",
        "changelog.md",
        "contributing.md",
        *(f"reference/{name}.md" for name in reference.pages()),
    }
    named = {path for _, _, path in config._flat(config.NAV, "")}
    assert pages <= named, "add the page to NAV in docs_site/config.py"
    assert named - pages - generated <= config.OPTIONAL


def test_the_reference_has_every_command_and_every_field():
    pages = reference.pages()
    commands, records = pages["commands"][1], pages["records"][1]
    assert "## headrace run\n" in commands and "| `--checkpoint` |" in commands
    for kind in ("Progress", "EpochRecord"):
        table = records.partition(f"## {kind}\n")[2].partition("\n## ")[0]
        rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
        assert len(rows) > 10 and [row[0] for row in rows if not row[-1].strip(" |")] == []


def test_the_reference_has_every_public_name():
    text = "".join(text for _, text in reference.pages().values())
    assert [name for name in hr.__all__ if name not in {"sinks", "__version__"} and f".{name}" not in text] == []


def test_the_first_sentence_of_a_page():
    page = "# Title\n\n- a list\n\n| a | table |\n\nheadrace has [a link](gone.md) here. And more.\n"
    assert build.first_sentence(page) == "headrace has a link here."


def test_every_page_of_the_reference_has_a_first_sentence_of_its_own():
    found = [build.first_sentence(f"# {title}\n\n{text}") for title, text in reference.pages().values()]
    assert len(set(found)) == len(found) and min(map(len, found)) > 30
    assert not any(sentence.startswith("In the examples") for sentence in found)


def test_a_sentence_ends_before_emphasis():
    assert build.first_sentence("# Title\n\nOne sentence. *Another one.* A third.\n") == "One sentence."


def test_the_home_page_leads_to_the_reference(tmp_path: Path):
    staging.stage(tmp_path)
    home = (tmp_path / "index.md").read_text()
    made = {f"reference/{name}.md" for name in reference.pages()}
    for phrase, page in staging.HOME_LINKS.items():
        assert f"[{phrase}]({page})" in home and page in made


@pytest.fixture(scope="module")
def zensical() -> Path:
    if not build.ZENSICAL.exists():
        if os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
            pytest.fail("make docs installs the site generator, and it is missing")
        pytest.skip("make docs installs the site generator")
    return build.ZENSICAL


def test_the_site_builds(zensical: Path, tmp_path: Path):
    site = build.build(tmp_path, zensical)
    assert links.search_entries(site) > 200
    listed = (site / "llms.txt").read_text()
    for _, _, path in config.listed(tmp_path / "docs"):
        assert f"]({path})" in listed
        assert ":::" not in (site / path).read_text()


BROKEN = {
    "page": ("[gone](gone.html)", "there is no such page"),
    "anchor": ("[gone](#gone)", "the page has no such anchor"),
    "other host": ("![picture](https://example.com/picture.png)", "from another host"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_link_is_found(kind: str, tmp_path: Path):
    text, fault = BROKEN[kind]
    link = text.partition("(")[2].rstrip(")")
    shown = f'<img src="{link}">' if text.startswith("!") else f'<a href="{link}">gone</a>'
    (tmp_path / "index.html").write_text(f"<p id='here'>{shown}</p>")
    assert any(fault in problem for problem in links.problems(tmp_path))


def test_a_link_to_a_missing_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    docs = tmp_path / "docs"
    shutil.copytree(staging.DOCS / "explanation", docs / "explanation")
    for name in staging.RENAMED:
        (tmp_path / name).write_text("# A page\n")
    (docs / "index.md").write_text("[gone](gone.md)\n")
    monkeypatch.setattr(staging, "ROOT", tmp_path)
    monkeypatch.setattr(staging, "DOCS", docs)
    with pytest.raises(SystemExit, match=r"index\.md links to 'gone\.md'"):
        staging.stage(tmp_path / "staged")


def test_zensical_refuses_a_broken_link(zensical: Path, tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](#gone)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: test\ndocs_dir: docs\nsite_dir: site\n")
    with pytest.raises(SystemExit, match="anchor does not exist"):
        build.generate(tmp_path / "mkdocs.yml", zensical)
