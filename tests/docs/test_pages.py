"""Every code block of every page is run, in order, in an empty folder, with one Spark session for all pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from headrace.cli import app
from tests.docs import given, pages

TWICE = {"README.md", "SINKS.md", "PROCESSORS.md"}  # readers try these again in the same folder
SERVERS = {"postgresql://ann@localhost:5432/shop": "server", "localhost:9092": "broker"}  # address and fixture
WITH_CODE = [page for page in pages.PAGES if pages.runnable(page)]
TARGETS = set(re.findall(r"^([a-z]+):", (pages.ROOT / "Makefile").read_text(), re.MULTILINE))


def name_of(page: Path) -> str:
    return page.relative_to(pages.ROOT).as_posix()


@pytest.mark.spark
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_blocks_of_a_page(
    page: Path, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    monkeypatch.chdir(tmp_path)
    for variable in ("DB_URL", "PRICES_TOKEN"):  # set by pages
        monkeypatch.setenv(variable, "")
    text = "".join(block.text for block in pages.runnable(page))
    addresses = {address: _here(request, fixture) for address, fixture in SERVERS.items() if address in text}
    for _ in range(2 if page.name in TWICE else 1):
        pages.run(page, addresses, given.names(page.name))


def _here(request: pytest.FixtureRequest, fixture: str) -> str:
    """Return the address of a server of the tests."""
    found = request.getfixturevalue(fixture)
    return found.url if fixture == "server" else found.servers


@pytest.mark.parametrize("page", pages.PAGES, ids=name_of)
def test_the_language_of_every_block_is_known(page: Path):
    found = {block.language for block in pages.blocks(page)}
    assert found <= pages.LANGUAGES
    assert page.read_text().count("\n```") % 2 == 0


@pytest.mark.parametrize("page", pages.PAGES, ids=name_of)
def test_every_command_and_option_on_a_page_exists(page: Path):
    for block in pages.blocks(page):
        if block.language in {"console", "bash", "sh"}:
            for line in block.text.replace("\\\n", " ").splitlines():
                _check_command(line.partition("  #")[0].strip().removeprefix("$ ").split())


def _check_command(words: list[str]) -> None:
    if words[:1] == ["make"]:
        assert {word for word in words[1:] if "=" not in word and word != "#"} <= TARGETS, words
    if words[:1] != ["headrace"]:
        return
    command: click.Command = typer.main.get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    assert not getattr(command, "commands", {}) or not rest or rest[0].startswith("-"), f"no such command: {words}"
    options = {name for each in command.params for name in [*each.opts, *each.secondary_opts]} | {"--help"}
    assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= options, words
