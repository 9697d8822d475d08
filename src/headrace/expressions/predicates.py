"""Analysis of join predicates: equalities for routing and lookup, ranges, and parts that can be evaluated in any order."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.columnar.types import has_float
from headrace.expressions.constant_folding import fold_constants
from headrace.expressions.gates import Expression, checked_scalar, demand_boolean
from headrace.expressions.geography import ARGUMENTS, RADIUS_KM, distance_arguments
from headrace.expressions.pair_codegen import (
    CompiledPredicate,
    Obstacle,
    compile_conditions,
    is_constant,
    number_constant,
)
from headrace.expressions.syntax_tree import (
    Tree,
    column_node,
    columns_of,
    conjuncts,
    parse,
    to_sql,
    walk_tree,
    with_deep_recursion,
)

Column = Callable[[Tree, Mapping[str, pa.Schema]], tuple[str, str] | None]


@dataclass(frozen=True)
class KeyEquality:
    """An equality `l.left = r.right` between two columns with compatible hashes."""

    left: str
    right: str
    type: pa.DataType  # common type to which both are cast before hashing


@dataclass(frozen=True)
class Circle:
    """The condition that two points on the Earth are at most `km` apart."""

    left: tuple[str, str]  # columns of latitude and longitude
    right: tuple[str, str]
    km: float

    def place(self, side: str) -> tuple[str, str]:
        """Return the columns of latitude and longitude of a side."""
        return self.left if side == "l" else self.right


@dataclass(frozen=True)
class BandCondition:
    """The condition that `point` (side, column) is within `width` of the interval between two columns of the side
    `moving`.

    computed: (side, column, SQL) of the columns that the input does not have. circle: a stricter condition, from which
    this one on latitudes follows.
    """

    point: tuple[str, str]
    moving: str
    interval: tuple[str, str]
    width: float
    computed: tuple[tuple[str, str, str], ...] = ()
    circle: Circle | None = None

    @property
    def points_side(self) -> int:
        """Return the side of the points: 0 left, 1 right."""
        return "lr".index(self.point[0])

    @property
    def along(self) -> str:
        """Return the value along which pairs are looked up, for people."""
        computed = {(side, name): f"{sql[1:-1]} of {side}" for side, name, sql in self.computed}
        return computed.get(self.point) or ".".join(self.point)


@dataclass(frozen=True)
class JoinPredicate:
    """A join predicate and the parts of it that routing and loops can use."""

    text: str
    sql: str
    keys: tuple[KeyEquality, ...]
    may_fail: str  # the first part that can fail on a pair; empty: none can
    ranges: bool  # consists of inequalities between the two sides, so a range join can evaluate it
    plain_keys: bool  # consists of equalities of types that Arrow compares as DuckDB does
    near_if_safe: BandCondition | None  # a condition (one or two parts) that keeps two doubles close
    band: (
        BandCondition | None
    )  # a part that does so with numbers or times of any type; for routing and for joins with tables
    box: BandCondition | None  # two parts that do so, such as `l.x >= r.a and l.x < r.b`; for joins with tables
    native: CompiledPredicate | None  # the whole predicate as a compiled loop
    residual: (
        CompiledPredicate | None
    )  # the parts other than keys that a compiled loop can evaluate; the remaining parts cannot fail
    columns: frozenset[tuple[str, ...]]
    obstacles: tuple[Obstacle, ...] = ()  # parts that no loop can evaluate
    one_sided: tuple[
        tuple[str, Expression], ...
    ] = ()  # (side, condition on its tuples) implied by the predicate; these conditions cannot fail

    @property
    def safe(self) -> bool:
        """Return whether the predicate cannot fail on any pair, so that parts may be evaluated in any order."""
        return not self.may_fail

    @property
    def near(self) -> BandCondition | None:
        """Return the condition to search by; None if evaluating it first could hide an error of other parts."""
        return self.near_if_safe if self.safe else None


def join_predicate(text: str, left: pa.Schema, right: pa.Schema) -> JoinPredicate:
    """Check the predicate of a join over `l.*` and `r.*` and find its equalities."""
    if not isinstance(text, str):
        checked_scalar(text, {"l": left, "r": right}, "on")  # raises with a description of the argument
    return _join_predicate(text, left, right)


@functools.lru_cache(maxsize=256)
@with_deep_recursion
def _join_predicate(text: str, left: pa.Schema, right: pa.Schema) -> JoinPredicate:
    what = "on"
    found = checked_scalar(text, {"l": left, "r": right}, what)
    demand_boolean(found.type, text, what)
    tree = parse(found.sql, what)
    parts = list(conjuncts(tree))
    schemas = {"l": left, "r": right}
    may_fail = first_unsafe(tree, schemas)
    by_part = [_key(part, left, right) for part in parts]
    keys = [key for key in by_part if key]
    others = [part for part, key in zip(parts, by_part, strict=True) if not key]
    looped, obstacles = compile_conditions(others, schemas)
    return JoinPredicate(
        text=text,
        sql=found.sql,
        keys=tuple(keys),
        may_fail=may_fail,
        ranges=all(_is_range(part) for part in parts),
        plain_keys=len(keys) == len(parts) and not any(_compares_its_own_way(key.type) for key in keys),
        near_if_safe=_first(_circle(part, schemas) for part in parts)
        or _near_in(parts, schemas)
        or _near_computed(parts, schemas),
        band=_first(_near(part, schemas, _orderable) for part in parts),
        box=_box(parts, schemas, _orderable),
        native=None if keys or obstacles else looped,
        residual=looped if keys and (not may_fail or not obstacles) else None,
        columns=found.columns,
        obstacles=obstacles,
        one_sided=tuple(found for part in parts for found in one_sided_conditions(part, schemas)),
    )


def one_sided_conditions(tree: Tree, schemas: Mapping[str, pa.Schema]) -> Iterator[tuple[str, Expression]]:
    """Yield the conjunct as a condition on one side if it refers to one side only and cannot fail."""
    sides = {path[0].lower() for path in columns_of(tree)}
    if len(sides) == 1 and _safe(tree, schemas):
        side = sides.pop()
        condition = checked_scalar(to_sql(_unqualified(tree)), {"": schemas[side]}, "on")
        if pa.types.is_boolean(condition.type):  # a number is a valid condition in a join predicate but not in a filter
            yield side, condition


def _unqualified(tree: Any) -> Any:
    """Return the tree with column names without their side."""
    if isinstance(tree, list):
        return [_unqualified(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("class") == "COLUMN_REF":
        return {**tree, "column_names": tree["column_names"][1:]}
    return {name: _unqualified(value) for name, value in tree.items()}


def _key(tree: Tree, left: pa.Schema, right: pa.Schema) -> KeyEquality | None:
    """Return the equality of a left and a right column if the conjunct is one that hashing can use."""
    found = equal_columns(tree, {"l": left, "r": right})
    if found is None:
        return None
    (side, one), (_, other), kind = found
    return KeyEquality(one, other, kind) if side == "l" else KeyEquality(other, one, kind)


def equal_columns(
    tree: Tree, scopes: Mapping[str, pa.Schema]
) -> tuple[tuple[str, str], tuple[str, str], pa.DataType] | None:
    """Return the columns of two sides, as (side, column), that the conjunct makes equal, and the type to hash them as."""
    if tree.get("type") != "COMPARE_EQUAL":
        return None
    one, other = (_column(tree[part], scopes) for part in ("left", "right"))
    if one is None or other is None or one[0] == other[0]:
        return None
    common = hash_type(*(scopes[side].field(name).type for side, name in (one, other)))
    return (one, other, common) if common is not None else None


def _compares_its_own_way(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))


_INEQUALITIES = frozenset(
    ("COMPARE_LESSTHAN", "COMPARE_GREATERTHAN", "COMPARE_LESSTHANOREQUALTO", "COMPARE_GREATERTHANOREQUALTO")
)


_OPERANDS: tuple[str, ...] = ("left", "right", "input", "lower", "upper")


def _is_range(tree: Tree) -> bool:
    """Return whether the tree is an inequality that compares one side of the join with the other."""
    if tree.get("type") not in _INEQUALITIES:
        return False
    sides = [{path[0].lower() for path in columns_of(tree[part])} for part in ("left", "right")]
    return sides in ([{"l"}, {"r"}], [{"r"}, {"l"}])


def near_condition(tree: Tree, schemas: Mapping[str, pa.Schema]) -> BandCondition | None:
    """Return the conjunct as an interval of one side around a point of another, by columns that have an order."""
    return _near(tree, schemas, _double) or _near(tree, schemas, _orderable)


def _near(tree: Tree, schemas: Mapping[str, pa.Schema], column: Column) -> BandCondition | None:
    """Return the conjunct as an interval of one side that contains a point of the other, or None."""
    if tree.get("type") == "COMPARE_BETWEEN":
        point, low, high = (column(tree[part], schemas) for part in ("input", "lower", "upper"))
        if point and low and high and low[0] == high[0] != point[0] and _one_kind(schemas, point, low, high):
            return BandCondition(point, low[0], (low[1], high[1]), 0.0)
        return None
    if tree.get("type") not in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"):
        return None
    limit = fold_constants(tree["right"], _FOLDED)
    if not is_constant(limit):
        return None
    distance = _call(tree["left"], "abs", 1)
    difference = _call(distance[0], "-", 2) if distance else None
    ends = [_double(end, schemas) for end in difference] if difference else []
    width = number_constant(limit)
    if len(ends) == 2 and ends[0] and ends[1] and ends[0][0] != ends[1][0] and width >= 0:
        return BandCondition(ends[1], ends[0][0], (ends[0][1], ends[0][1]), width)
    return None


def _near_in(parts: Sequence[Tree], schemas: Mapping[str, pa.Schema]) -> BandCondition | None:
    near = _first(_near(part, schemas, _double) for part in parts)
    return near or _box(parts, schemas, _double)


def _near_computed(parts: Sequence[Tree], schemas: Mapping[str, pa.Schema]) -> BandCondition | None:
    """Return a condition between doubles that are computed from one side each, such as `r.low - r.width / 2`."""
    computed: dict[tuple[str, str], str] = {}  # (side, SQL) -> column

    def column(tree: Tree) -> Tree:
        """Return the tree, or a column in its place that is to be computed."""
        sides = {path[0].lower() for path in columns_of(tree)}
        if len(sides) != 1 or tree["class"] == "COLUMN_REF" or not _safe(tree, schemas):
            return tree
        [side] = sides
        value = checked_scalar(to_sql(_unqualified(tree)), {"": schemas[side]}, "on")
        if not pa.types.is_float64(value.type):
            return tree
        name = computed.setdefault((side, value.sql), f"__near_{len(computed)}")
        return {**column_node(side), "column_names": [side, name]}

    replaced = [_with_operands(part, column) for part in parts]
    wider = {
        side: pa.schema([*schema, *(pa.field(name, pa.float64()) for (of, _), name in computed.items() if of == side)])
        for side, schema in schemas.items()
    }
    found = _near_in(replaced, wider) if computed else None
    if found is None:
        return None
    used = {found.point, *((found.moving, name) for name in found.interval)}
    return replace(
        found, computed=tuple((side, name, sql) for (side, sql), name in computed.items() if (side, name) in used)
    )


def _with_operands(tree: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """Return an inequality with its operands changed; those of a difference in `abs(a - b)` count as operands."""
    if tree.get("type") not in _INEQUALITIES and tree.get("type") != "COMPARE_BETWEEN":
        return tree
    distance = _call(tree["left"], "abs", 1) if "left" in tree else None
    if distance and (ends := _call(distance[0], "-", 2)):
        difference = _with_arguments(distance[0], [change(end) for end in ends])
        return {**tree, "left": _with_arguments(tree["left"], [difference])}
    return {**tree, **{name: change(tree[name]) for name in _OPERANDS if name in tree}}


def _with_arguments(call: Tree, values: Sequence[Tree]) -> Tree:
    arguments = [{**old, "expression": new} for old, new in zip(call["arguments"], values, strict=True)]
    return {**call, "arguments": arguments}


def _circle(tree: Tree, schemas: Mapping[str, pa.Schema]) -> BandCondition | None:
    """Return the conjunct as a band of latitudes if it bounds the distance of a place of each side."""
    if tree.get("type") in ("COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"):
        distance, limit = tree["left"], tree["right"]
    elif tree.get("type") in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
        distance, limit = tree["right"], tree["left"]
    else:
        return None
    given, limit = distance_arguments(distance), fold_constants(limit, _FOLDED)
    if given is None or not is_constant(limit):
        return None
    places = [_double(given[name], schemas) for name in ARGUMENTS]
    sides = [place[0] for place in places if place]
    if sides not in (["l", "l", "r", "r"], ["r", "r", "l", "l"]):
        return None
    names = [place[1] for place in places if place]
    km = number_constant(limit)
    if not 0 <= km < math.pi * RADIUS_KM:  # no pair, or every pair
        return None
    first, second = (names[0], names[1]), (names[2], names[3])
    circle = Circle(first, second, km) if sides[0] == "l" else Circle(second, first, km)
    width = math.degrees(km / RADIUS_KM * (1 + 1e-9)) + (1e-12 if km < RADIUS_KM else 1e-4)  # asin is flat near 1
    return BandCondition((sides[2], names[2]), sides[0], (names[0], names[0]), width, circle=circle)


def _first(found: Iterable[BandCondition | None]) -> BandCondition | None:
    return next((each for each in found if each), None)


def _box(parts: Sequence[Tree], schemas: Mapping[str, pa.Schema], column: Column) -> BandCondition | None:
    """Return two conjuncts that keep a point between two columns of the other side. Whether the ends are included is
    left to the full predicate.
    """
    bounds = [found for found in (_bound(part, schemas, column) for part in parts) if found]
    for low, above in bounds:
        for below, high in bounds:
            if above == below and low[0] == high[0] and _one_kind(schemas, above, low, high):
                return BandCondition(above, low[0], (low[1], high[1]), 0.0)
    return None


def _bound(
    tree: Tree, schemas: Mapping[str, pa.Schema], column: Column
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Return the smaller and the larger of two columns, one of each side, that the conjunct compares."""
    if tree.get("type") not in _INEQUALITIES:
        return None
    one, other = (column(tree[part], schemas) for part in ("left", "right"))
    if one is None or other is None or one[0] == other[0]:
        return None
    return (one, other) if "LESSTHAN" in tree["type"] else (other, one)


def _call(tree: Tree, name: str, arguments: int) -> list[Tree] | None:
    if tree.get("class") == "FUNCTION" and tree["function_name"] == name and len(tree["arguments"]) == arguments:
        return [argument["expression"] for argument in tree["arguments"]]
    return None


def _double(tree: Tree, schemas: Mapping[str, pa.Schema]) -> tuple[str, str] | None:
    """Return (side, column) if the tree is a plain column of doubles."""
    found = _column(tree, schemas)
    return found if found and pa.types.is_float64(schemas[found[0]].field(found[1]).type) else None


def _orderable(tree: Tree, schemas: Mapping[str, pa.Schema]) -> tuple[str, str] | None:
    """Return (side, column) if the tree is a plain column whose order is that of 64-bit integers or doubles."""
    found, t = _column(tree, schemas), pa.types
    kind = schemas[found[0]].field(found[1]).type if found else pa.null()
    whole = t.is_integer(kind) and not t.is_uint64(kind)
    return found if whole or t.is_floating(kind) or t.is_timestamp(kind) or t.is_date(kind) else None


def _one_kind(schemas: Mapping[str, pa.Schema], *columns: tuple[str, str]) -> bool:
    """Return whether the columns have comparable types: whole numbers of any width, or one type."""
    kinds = {schemas[side].field(name).type for side, name in columns}
    return len(kinds) == 1 or all(pa.types.is_integer(kind) for kind in kinds)


def _column(tree: Tree, schemas: Mapping[str, pa.Schema]) -> tuple[str, str] | None:
    """Return (side, column) if the tree is a plain column."""
    if tree.get("class") != "COLUMN_REF" or len(tree["column_names"]) != 2:
        return None
    side = tree["column_names"][0].lower()
    return side, own_name(schemas[side], tree["column_names"][1])


def own_name(schema: pa.Schema, name: str) -> str:
    return str(next(column for column in schema.names if column.lower() == name.lower()))


def hash_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which two key columns are equal exactly if DuckDB finds them equal, or None if they cannot be
    hashed.
    """
    t = pa.types
    if t.is_integer(left) and t.is_integer(right):
        return None if t.is_uint64(left) or t.is_uint64(right) else pa.int64()
    if t.is_floating(left) and t.is_floating(right):
        return pa.float64()
    if t.is_nested(left) and has_float(left):
        return None
    return left if left == right else None


_SAFE_COMPARISONS = frozenset(
    [
        "COMPARE_EQUAL",
        "COMPARE_NOTEQUAL",
        "COMPARE_LESSTHAN",
        "COMPARE_GREATERTHAN",
        "COMPARE_LESSTHANOREQUALTO",
        "COMPARE_GREATERTHANOREQUALTO",
        "COMPARE_BETWEEN",
        "COMPARE_DISTINCT_FROM",
        "COMPARE_NOT_DISTINCT_FROM",
    ]
)
_SAFE_KINDS = frozenset(["COLUMN_REF", "CONSTANT", "CONJUNCTION", "COMPARISON", "BETWEEN"])
_SAFE_OPERATORS = frozenset(["OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"])
_SAFE_ON_FLOATS = frozenset(  # outside their domain the result is NaN or infinite, not an error
    [
        "+",
        "-",
        "*",
        "/",
        "abs",
        "sqrt",
        "cbrt",
        "pow",
        "power",
        "exp",
        "ln",
        "log",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "radians",
        "degrees",
        "floor",
        "ceil",
        "ceiling",
        "least",
        "greatest",
    ]
)
_FOLDED = _SAFE_ON_FLOATS | {"pi", "//", "%", "round"}  # of numbers alone, if DuckDB computes them without an error
MOST_DECIMALS = 18  # decimal places of a literal compared with whole numbers; with more, the common type can overflow


def _safe(tree: Tree, scopes: Mapping[str, pa.Schema]) -> bool:
    """Return whether the predicate cannot raise an error on any pair of tuples."""
    return not first_unsafe(tree, scopes)


def first_unsafe(tree: Tree, scopes: Mapping[str, pa.Schema]) -> str:
    """Return the first part that some pair of tuples can make fail, as SQL; an empty text if there is none."""
    nodes = walk_tree(fold_constants(tree, _FOLDED))
    return next((to_sql(node)[1:-1] for node in nodes if not _safe_part(node, scopes)), "")


def _safe_part(node: Tree, scopes: Mapping[str, pa.Schema]) -> bool:
    kind, types = node["class"], _types(node, scopes)
    if kind in ("CONJUNCTION", "OPERATOR"):
        direct = {
            t for child in node.get("children", ()) if child["class"] == "COLUMN_REF" for t in _types(child, scopes)
        }
        conditions = node.get("type") in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL") or all(map(_is_condition, direct))
        return conditions and (kind == "CONJUNCTION" or node["type"] in _SAFE_OPERATORS)
    if kind == "FUNCTION":
        floats = bool(types) and all(map(pa.types.is_floating, types))
        return floats and node["function_name"] in _SAFE_ON_FLOATS
    if kind == "CONSTANT":
        return _literal_kind(node) in ("INTEGER", "NUMERIC", "BOOLEAN")
    if kind in ("COMPARISON", "BETWEEN"):
        return node["type"] in _SAFE_COMPARISONS and _comparable(node, types)
    return kind in _SAFE_KINDS


def _comparable(node: Tree, types: set[pa.DataType]) -> bool:
    """Return whether the comparison needs no conversion that can fail."""
    literals = [each for each in walk_tree(node) if each.get("class") == "CONSTANT"]
    if any(_literal_kind(each) == "BOOLEAN" for each in literals):
        return all(map(pa.types.is_boolean, types))
    if literals and not all(map(_is_number, types)):
        return False
    if any(len((each["literal"].get("text") or "").partition(".")[2]) > MOST_DECIMALS for each in literals):
        return all(map(pa.types.is_floating, types))
    return all(map(_is_number, types)) or len(types) <= 1


def _types(node: Tree, scopes: Mapping[str, pa.Schema]) -> set[pa.DataType]:
    return {scopes[p[0].lower()].field(own_name(scopes[p[0].lower()], p[1])).type for p in columns_of(node)}


def _literal_kind(node: Tree) -> str:
    return str((node.get("literal") or {}).get("kind", ""))


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type) or pa.types.is_integer(type))


def _is_condition(type: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(type)) or _is_number(type)
