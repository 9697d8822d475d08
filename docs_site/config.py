"""Configuration and navigation of the site. Every page of `docs/` is listed in `NAV`; a test checks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAV: list[dict[str, Any]] = [
    {"Home": "index.md"},
    {"Tutorial": "tutorial.md"},
    {
        "How to": [
            {"Overview": "how-to/index.md"},
            {"Join on any predicate": "how-to/join-on-any-predicate.md"},
            {"Join several streams": "how-to/join-several-streams.md"},
            {"Find the best partner": "how-to/find-the-best-partner.md"},
            {"Find what did not happen": "how-to/find-what-did-not-happen.md"},
            {"Handle hot keys": "how-to/handle-hot-keys.md"},
            {"Handle late data and idle sources": "how-to/handle-late-data.md"},
            {"Use count windows": "how-to/use-count-windows.md"},
            {"Enrich from a changing table": "how-to/enrich-from-a-table.md"},
            {"Keep state of your own": "how-to/keep-state-of-your-own.md"},
            {"Read and write Kafka": "how-to/read-and-write-kafka.md"},
            {"From Kafka to a database": "how-to/kafka-to-database.md"},
            {"Write each result exactly once": "how-to/write-exactly-once.md"},
            {"Change a query without losing state": "how-to/change-a-query.md"},
            {"Use more or fewer slots": "how-to/change-slots.md"},
            {"Run on a cluster": "how-to/run-on-a-cluster.md"},
            {"Look at a query before it runs": "how-to/look-before-running.md"},
            {"Use the command line": "how-to/use-the-command-line.md"},
            {"Find out why a run is slow": "how-to/find-out-why-a-run-is-slow.md"},
            {"Get an alert": "how-to/get-an-alert.md"},
            {"Test a query": "TESTING.md"},
        ]
    },
    {
        "Reference": [
            {"All calls and defaults": "USING.md"},
            {"Sources and sessions": "reference/sources.md"},
            {"Streams and tables": "reference/streams.md"},
            {"Runs": "reference/runs.md"},
            {"Processors": "reference/processors.md"},
            {"Processors in detail": "PROCESSORS.md"},
            {"Kafka": "KAFKA.md"},
            {"Sinks": "reference/sinks.md"},
            {"Sinks in detail": "SINKS.md"},
            {"Testing": "reference/testing.md"},
            {"Errors": "reference/errors.md"},
            {"More names": "reference/more.md"},
            {"Commands": "reference/commands.md"},
            {"Progress and records": "reference/records.md"},
            {"Guarantees": "GUARANTEES.md"},
            {"Deployment": "DEPLOYING.md"},
        ]
    },
    {
        "Explanation": [
            {"What exact means and costs": "explanation/exactness.md"},
            {"How an epoch works": "explanation/epochs.md"},
            {"State and commits": "explanation/state.md"},
            {"Four papers, one system": "explanation/papers.md"},
            {"The cost model": "COST-MODEL.md"},
            {"Where the time goes": "PERFORMANCE.md"},
            {"Linear Road": "LINEAR-ROAD.md"},
        ]
    },
    {"Comparison": "comparison.md"},
    {
        "Help": [
            {"Questions": "faq.md"},
            {"Troubleshooting": "troubleshooting.md"},
            {"Upgrading": "upgrading.md"},
            {"Changes": "changelog.md"},
        ]
    },
    {
        "Contributors": [
            {"Contributing": "contributing.md"},
            {"Architecture": "ARCHITECTURE.md"},
            {"Adding an operator": "ADDING.md"},
            {"Tests": "contributors/tests.md"},
            {"Glossary": "contributors/glossary.md"},
            {"Decisions": "contributors/decisions.md"},
        ]
    },
]
OPTIONAL = {"TESTING.md", "reference/more.md"}  # listed as soon as the page exists

THEME = {
    "name": "material",
    "font": False,
    "features": ["navigation.tabs", "navigation.top", "navigation.footer", "content.code.copy", "search.highlight"],
    "palette": [
        {
            "media": "(prefers-color-scheme: light)",
            "scheme": "default",
            "toggle": {"icon": "material/weather-night", "name": "Switch to dark colours"},
        },
        {
            "media": "(prefers-color-scheme: dark)",
            "scheme": "slate",
            "toggle": {"icon": "material/weather-sunny", "name": "Switch to light colours"},
        },
    ],
}
DOCSTRINGS = {
    "docstring_style": "google",
    "show_source": False,
    "show_root_heading": True,
    "show_root_full_path": False,
    "members_order": "source",
    "filters": ["!^_"],
    "separate_signature": True,
    "line_length": 88,
    "show_signature_annotations": True,
}
EXTENSIONS: list[Any] = [
    {"toc": {"permalink": True}},
    "tables",
    "admonition",
    "attr_list",
    "sane_lists",
    {"pymdownx.highlight": {"pygments_lang_class": True}},
    "pymdownx.superfences",
]


def configuration(pages: Path, source: Path) -> dict[str, Any]:
    """Return the configuration of the generator for staged pages and the folder of the Python sources."""
    python = {"paths": [str(source)], "options": DOCSTRINGS}
    return {
        "site_name": "headrace",
        "site_description": "Continuous queries on Apache Spark with exactly the sequential answer",
        "docs_dir": "docs",
        "site_dir": "site",
        "theme": THEME,
        "extra": {"generator": False},
        "plugins": ["search", {"mkdocstrings": {"handlers": {"python": python}}}],
        "markdown_extensions": EXTENSIONS,
        "nav": _existing(NAV, pages),
    }


def listed(pages: Path) -> list[tuple[str, str, str]]:
    """Return section, title and path of every page that the navigation lists."""
    return list(_flat(_existing(NAV, pages), ""))


def _existing(nav: list[dict[str, Any]], pages: Path) -> list[dict[str, Any]]:
    """Return the navigation without optional pages that do not exist."""
    kept: list[dict[str, Any]] = []
    for entry in nav:
        [(title, value)] = entry.items()
        if isinstance(value, list):
            kept.append({title: _existing(value, pages)})
        elif value not in OPTIONAL or (pages / value).exists():
            kept.append(entry)
    return kept


def _flat(nav: list[dict[str, Any]], section: str) -> Iterator[tuple[str, str, str]]:
    for entry in nav:
        [(title, value)] = entry.items()
        if isinstance(value, list):
            yield from _flat(value, section or title)
        else:
            yield section, title, value
