"""Labels of results: the names from `named` in logs, epoch records, progress and tables on a terminal.

Invariant: a label is not part of the query. State, outbox and sinks identify a result by its position, `result-N`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.errors import QueryError, QueryTypeError
from headrace.support.argument_errors import describe_argument

LONGEST_LABEL = 255
TAKEN = ("late:", "failed:")  # prefixes of the names of late, rejected and failed tuples


def check_label(name: str) -> str:
    """Return the name. Raise if it cannot be the label of a result."""
    if not isinstance(name, str):
        raise QueryTypeError(f"named takes a name as text; found {describe_argument(name)}; such as s.named('alarms')")
    if not name or name != name.strip() or not name.isprintable() or len(name) > LONGEST_LABEL:
        raise QueryError(
            f"the name of a result must have 1 to {LONGEST_LABEL} printable characters and no spaces at its ends;"
            f" found {name!r:.100}"
        )
    if name.startswith(TAKEN):
        raise QueryError(
            f"names that begin with {' or '.join(TAKEN)} are reserved; found {name!r}; choose another name"
        )
    return name


def result_labels(names: Sequence[str | None]) -> dict[str, str]:
    """Return the label of each result of a run, by `result-N`. `names` are the given names in the order of the results."""
    labels = {f"result-{number}": name or f"result-{number}" for number, name in enumerate(names)}
    listed = list(labels.values())
    if twice := next((name for name in listed if listed.count(name) > 1), None):
        raise QueryError(f"two results are called {twice!r}; give each result of a run its own name: s.named(...)")
    return labels


def labelled(line: str, labels: Mapping[str, str]) -> str:
    """Return a line of a report that begins with a result of the query, with the label of the result.

    >>> labelled("result-0: was a, is b", {"result-0": "alarms"}), labelled("result-1 is new", {"result-1": "result-1"})
    ('alarms (result-0): was a, is b', 'result-1 is new')
    """
    result = line.partition(" ")[0].removesuffix(":")
    label = labels.get(result, result)
    return line if label == result else f"{label} ({result}){line.removeprefix(result)}"
