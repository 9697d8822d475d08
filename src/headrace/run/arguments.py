"""Checks of the arguments of `collect` and `start`, made before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace import plan as p
from headrace.errors import QueryError, QueryTypeError
from headrace.query import nodes
from headrace.sinks import AnySink, is_sink, takes_parts
from headrace.spark import shipping
from headrace.state.manifest import Manifest
from headrace.stream import Stream, node_of
from headrace.support.argument_errors import argument_kind, describe_argument
from headrace.support.limits import MOST_SLOTS, check_slots
from headrace.task.failure_points import FAILED, rejected_results

AUTO = "auto"
ORDERS = ("transparent", "best-effort")
ERRORS = ("stop", "keep")


def check_order(order: str) -> None:
    if order not in ORDERS:
        raise QueryError(f"order must be one of {', '.join(ORDERS)}; found {order!r}")


def check_ends(once: bool, until_idle: bool) -> None:
    for name, value in (("once", once), ("until_idle", until_idle)):
        if not isinstance(value, bool):
            raise QueryTypeError(f"{name} must be True or False; found {value!r}")
    if once and until_idle:
        raise QueryError(
            "once=True ends after the input that exists now, and until_idle=True waits for more; give one of them"
        )


def check_limits(roots: Sequence[nodes.Node], *, ends: bool) -> None:
    """Raise if a run without an end contains a `limit`. ends: the input of the run has an end."""
    if ends:
        return
    for node in nodes.walk_nodes(*roots):
        if isinstance(node, nodes.Splitting):
            check_limits([node.body.root], ends=False)
        if isinstance(node, nodes.Limit):
            raise QueryError(
                f"limit keeps the first tuples of a sequence, so a run without an end would soon emit nothing; found {node.summary};"
                " give start(..., once=True), use static sources, or leave the limit out"
            )


def check_whole(root: nodes.Node, verb: str) -> None:
    """Raise for the argument of the function that `each` calls. Its tuples exist only while the query runs."""
    if any(isinstance(node, nodes.Substream) for node in nodes.walk_nodes(root)):
        raise QueryError(
            f"{verb} was called inside each, where a substream has no tuples yet;"
            f" call it on the stream before the split, or on what each returns"
        )


def check_results(results: Sequence[tuple[Stream, AnySink]]) -> None:
    if isinstance(results, Stream):
        raise QueryTypeError(
            "start takes a list of pairs of a stream and a sink; found a stream; write headrace.start([(s, sink)], ...),"
            " or s.start(sink, ...)"
        )
    if not results:
        raise QueryError("start needs at least one (stream, sink)")
    for item in results:
        if not isinstance(item, tuple) or len(item) != 2:
            raise QueryTypeError(f"start takes pairs of a stream and a sink; found {describe_argument(item)}")
        node_of(item[0])
        check_sink(item[1], "the sink")


def check_sink(sink: Any, what: str) -> None:
    if not is_sink(sink):
        example = "foreach(function)" if argument_kind(sink) == "function" else "parquet('out/')"
        raise QueryTypeError(f"{what}: {describe_argument(sink)} is not a sink; such as headrace.sinks.{example}")
    if takes_parts(sink):
        shipping.check_shipped(sink)


def check_planned(slots: int | str | None, policy: object) -> None:
    """Raise if an argument contradicts a given plan."""
    if slots == AUTO:
        raise QueryError('a plan fixes the number of slots; leave out slots="auto" or the plan')
    if policy is not None:
        raise QueryError(
            "a run that follows a plan does not adapt, so it takes no policy; leave out the policy or the plan"
        )


def check_errors(errors: str) -> bool:
    """Return whether tuples that fail are kept. Raise for an unknown value."""
    if errors not in ERRORS:
        raise QueryError(f"errors must be one of {', '.join(ERRORS)}; found {errors!r}")
    return errors == "keep"


def rejects_sinks(physical: p.PhysicalPlan, late: AnySink | None, last: Manifest | None) -> dict[str, AnySink]:
    """Return the sink of every result that holds late, rejected or failed tuples, by the result's name in the outbox.

    last: the newest manifest. Its outbox may have to be delivered again, under the names of an earlier plan.
    """
    if late is None:
        return {}
    found = list(rejected_results(physical, failed=True))
    if last is not None:
        found += [output.result for output in last.outbox if output.result.startswith(FAILED)]
    return dict.fromkeys(found, late)


def check_late(physical: p.PhysicalPlan, keep_failed: bool) -> None:
    """Raise if the input already has a column that `late=` adds."""
    for what, schema in rejected_results(physical, failed=keep_failed).values():
        if taken := {name for name in ("_source", "_reason") if schema.names.count(name) > 1}:
            raise QueryError(f"late= adds {', '.join(sorted(taken))}, but {what} has such a column; rename it")


def slot_count(slots: int | str | None, spark: Any) -> int:
    count = min(spark.sparkContext.defaultParallelism, MOST_SLOTS) if slots is None else slots
    return check_slots(count, besides=', or for start "auto"')


def spark_session_of(sources: Mapping[str, nodes.Source]) -> Any:
    sessions = [s.origin.spark for s in sources.values() if hasattr(s.origin, "spark")]
    if len(sessions) != len(sources):
        raise QueryTypeError(
            "a source is not on Spark; create sources with headrace.stream(df, ...), headrace.files(spark, ...) or"
            " headrace.kafka(spark, ...)"
        )
    return sessions[0]


def slot_limit(most_slots: int | None, count: int, spark: Any) -> int:
    """Return the largest number of slots that a run may change to."""
    most = min(4 * spark.sparkContext.defaultParallelism, MOST_SLOTS)
    limit = check_slots(most_slots, "most_slots") if most_slots is not None else max(count, most)
    if limit < count:
        raise QueryError(f"most_slots ({limit}) is less than slots ({count})")
    return limit
