"""A Delta table: rows and the number of their epoch in one commit of its log, as an application's transaction.

    txn: appId = "headrace <query> <result>", version = the epoch

Invariant: the table's log knows the newest epoch of every result that it has; it is looked at before every commit. Of two
commits of one application at once the log refuses the second, so a driver that nobody waits for any more adds nothing.
Files of a commit that failed are named in no log, and are removed by `vacuum`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.errors import QueryError, SinkError
from headrace.sinks.base import Delivery
from headrace.sinks.epoch_marks import mark_of, other_results_error
from headrace.sinks.lake import LakeTable, check_fits, signed_type, to_table_rows, wanted_schema
from headrace.sinks.patience import Unreachable
from headrace.sinks.result_folders import name_label
from headrace.support.extras import import_extra
from headrace.support.secrets import SealedSettings, mask_secrets

NOTE = "headrace"  # in a commit's own words: what its rows are known by
OF_A_STORE = re.compile("Generic (?!DeltaTable|delta)")  # such as "Generic S3 error": a store that is away
LOOK_BACK = 50  # commits in which the note of the newest epoch is looked for


class DeltaTable(LakeTable):
    """The sink."""

    def __init__(self, uri: str, options: Mapping[str, Any] | None, ordered: bool, seconds: float) -> None:
        self._library = import_extra("deltalake", "delta", "hr.sinks.delta")
        self._errors = import_extra("deltalake.exceptions", "delta", "hr.sinks.delta")
        self.ordered = ordered
        self.uri = str(mask_secrets(uri))
        self._given = SealedSettings(
            {"table_uri": uri, "storage_options": dict(options or {}) or None}, kept=self.uri
        ).open()
        super().__init__(f"the Delta table {self.uri}", seconds)

    def _deliver(self, delivery: Delivery) -> None:
        table, schema = self._prepare(delivery.table.schema)
        if self._has(table, delivery):
            return
        with self._named_errors():
            transaction = self._library.Transaction(_application(delivery.query, delivery.result), delivery.epoch)
            said = self._library.CommitProperties({NOTE: _note(delivery)}, app_transactions=[transaction])
            rows = to_table_rows(delivery.table, schema)
            self._library.write_deltalake(table, rows, mode="append", commit_properties=said)

    def _noted(self, query: str, result: str) -> int | None:
        with self._named_errors():
            found = self._open().transaction_version(_application(query, result))
        return None if found is None else int(found)

    def _has(self, table: Any, delivery: Delivery) -> bool:
        """Whether the epoch is there; refuses to go on if another one is there in its place."""
        with self._named_errors():
            known = table.transaction_version(_application(delivery.query, delivery.result))
            if known is None or known < delivery.epoch:
                return False
            notes = [note for commit in table.history(LOOK_BACK) if (note := commit.get(NOTE)) is not None]
        same_epoch = [note for note in notes if note.startswith(_note(delivery).partition(":")[0] + ":")]
        if known > delivery.epoch or (same_epoch and _note(delivery) not in same_epoch):
            raise other_results_error(self.place, delivery, known)
        return True

    def _prepare(self, schema: pa.Schema) -> tuple[Any, pa.Schema]:
        wanted = wanted_schema(schema, _held, "a Delta table")
        with self._named_errors():
            try:
                table = self._open()
            except self._errors.TableNotFoundError:
                self._may_make()
                table = self._library.DeltaTable.create(**self._given.opened, schema=wanted, mode="ignore")
            found = pa.schema(table.schema().to_arrow())
        check_fits(wanted, found, self.place)
        self._was_there = True
        return table, found

    def _open(self) -> Any:
        """Read the log from its last checkpoint. An update of a table that is known would lay the log of another table, which
        was made in its place, over the old one."""
        return self._library.DeltaTable(**self._given.opened)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        with self._given.hiding():
            try:
                yield
            except (SinkError, QueryError):
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {' '.join(str(error).partition('   0: <unknown>')[0].split())}"
                passing = isinstance(error, (OSError, self._errors.CommitFailedError)) or OF_A_STORE.search(text)
                if passing:  # a disk, a network or another writer
                    raise Unreachable(text) from None
                raise self._refused(text) from None

    def close(self) -> None:
        """Nothing stays open between two deliveries."""

    def __repr__(self) -> str:
        return f"delta({self.uri!r})"


def _application(query: str, result: str) -> str:
    return f"headrace {query} {name_label(result)}"


def _note(delivery: Delivery) -> str:
    return f"{_application(delivery.query, delivery.result)} {mark_of(delivery)}"


def _held(kind: pa.DataType) -> pa.DataType | None:
    return signed_type(kind, pa.types.is_time)
