"""The Iceberg sink: writes rows and the number of their epoch in one commit, as a property of the table.

    headrace.<query>.<result> = "epoch 12: 340 rows 1767225600000000..1767225659000000"

Properties remain when snapshots expire. Invariant: the property is read from the same metadata that the commit requires
to be the newest. If any other commit intervenes, this commit fails and the delivery checks the property again. The
library's own retries would skip that check, so they are disabled for this commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.sinks.base import Delivery
from headrace.sinks.epoch_marks import epoch_in, mark_of, other_results_error
from headrace.sinks.lake import LakeTable, check_fits, signed_type, to_table_rows, wanted_schema
from headrace.sinks.patience import Unreachable
from headrace.support.extras import import_extra
from headrace.support.secrets import SealedSettings

NO_RETRIES = {"commit.retry.num-retries": "0"}
NARROWEST = 32  # bits of the narrowest integer type


class IcebergTable(LakeTable):
    """The Iceberg sink. `catalog`: its properties, its name in PyIceberg's settings, or an open catalog."""

    def __init__(self, table: str, catalog: Any, ordered: bool, seconds: float) -> None:
        self._errors = import_extra("pyiceberg.exceptions", "iceberg", "hr.sinks.iceberg")
        self._load = import_extra("pyiceberg.catalog", "iceberg", "hr.sinks.iceberg").load_catalog
        self._updates = import_extra("pyiceberg.table.update", "iceberg", "hr.sinks.iceberg")
        self.table, self.ordered = table, ordered
        self._given = SealedSettings(dict(catalog) if isinstance(catalog, Mapping) else catalog).open()
        super().__init__(f"the Iceberg table {table}", seconds)
        self._catalog: Any = None

    def _deliver(self, delivery: Delivery) -> None:
        table, schema = self._prepare(delivery.table.schema)
        name = _property(delivery.query, delivery.result)
        known = table.properties.get(name)
        if known is not None and epoch_in(known) >= delivery.epoch:
            if known != mark_of(delivery):
                raise other_results_error(self.place, delivery, epoch_in(known))
            return
        with self._named_errors():
            patient = {**table.metadata.properties, **NO_RETRIES}
            table.metadata = table.metadata.model_copy(update={"properties": patient})
            with table.transaction() as transaction:  # fails if the table was replaced or its columns changed
                transaction._requirements += (
                    self._updates.AssertCurrentSchemaId(current_schema_id=table.metadata.current_schema_id),
                )
                transaction.append(to_table_rows(delivery.table, schema))
                transaction.set_properties({name: mark_of(delivery)})

    def _noted(self, query: str, result: str) -> int | None:
        with self._named_errors():
            known = self._open().load_table(self.table).properties.get(_property(query, result))
        return None if known is None else epoch_in(known)

    def _prepare(self, schema: pa.Schema) -> tuple[Any, pa.Schema]:
        wanted = wanted_schema(schema, _held, "an Iceberg table")
        with self._named_errors():
            catalog = self._open()
            if not catalog.table_exists(self.table):
                self._may_make()
                catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
                catalog.create_table_if_not_exists(self.table, schema=wanted)
            table = catalog.load_table(self.table)
            found = table.schema().as_arrow()
        check_fits(wanted, found, self.place)
        self._was_there = True
        return table, found

    def _open(self) -> Any:
        if self._catalog is None:
            self._catalog = self._opened()
        return self._catalog

    def _opened(self) -> Any:
        given = self._given.opened
        if isinstance(given, dict):
            return self._load(**{"name": "default", **given})  # an SQL catalog distinguishes its tables by its own name
        return self._load(given) if given is None or isinstance(given, str) else given

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        with self._given.hiding(), SealedSettings(getattr(self._catalog, "properties", None)).hiding():
            try:
                yield
            except HeadraceError:
                raise
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if self._may_pass(error):
                    raise Unreachable(text) from None
                raise self._refused(text) from None

    def _may_pass(self, error: Exception) -> bool:
        """Return whether an error may pass: another writer, or an unreachable catalog or store."""
        errors = self._errors
        conflicts = (errors.CommitFailedException, errors.CommitStateUnknownException, errors.WaitingForLockException)
        away = (OSError, errors.ServerError, errors.ServiceUnavailableError, errors.TooManyRequestsError)
        return (
            isinstance(error, (*conflicts, *away)) or type(error).__name__ == "OperationalError"
        )  # raised by SQL catalogs

    def close(self) -> None:
        """Close the catalog if this sink opened it."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None and catalog is not self._given.opened:
            catalog.close()

    def __repr__(self) -> str:
        return f"iceberg({self.table!r})"


def _property(query: str, result: str) -> str:
    return f"headrace.{query}.{result}"


def _held(kind: pa.DataType) -> pa.DataType | None:
    return signed_type(kind, lambda each: False, NARROWEST)
