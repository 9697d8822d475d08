"""hr.sinks.kafka on a real broker: every result once for those who read what is committed, whatever happens meanwhile."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace import sinks
from headrace.errors import MissingLibrary, QueryError, QueryTypeError, SinkError
from headrace.sinks import Delivery, kafka_messages
from headrace.sinks.kafka_messages import message_format
from headrace.testing import LocalRun, table_stream
from headrace_demo.broker import PASSWORD
from tests.kafka import reading
from tests.kafka.broker import Broker
from tests.sinks.stores import rows
from tests.sinks.test_stores import put_back

TOPIC = Callable[..., str]
QUERY = "0123456789abcdef"
EPOCHS = "headrace-epochs"
the_sink = import_module("headrace.sinks.kafka")


def begun(broker: Broker, topic: str, schema: pa.Schema | None = None, **options: Any) -> Any:
    sink: Any = sinks.kafka(broker.servers, topic, **options)
    sink.begin("result-0", rows().schema if schema is None else schema)
    return sink


def deliver(sink: Any, epoch: int, *values: int, query: str = QUERY) -> None:
    sink.deliver(Delivery(query, epoch, "result-0", rows(*values)))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer for a second is away."""
    monkeypatch.setattr(the_sink, "ANSWER", 1.0)
    monkeypatch.setattr(the_sink, "BEGIN", 2.0)


# --- every result once -------------------------------------------------------------------------------------------------


def test_an_epoch_that_comes_again_is_dropped(broker: Broker, a_topic: TOPIC):
    topic = a_topic(3)
    sink = begun(broker, topic)
    for epoch, values in enumerate([(1, 2, 3), (4, 5), (4, 5)]):
        deliver(sink, min(epoch, 1), *values)
    assert reading.values(broker.servers, topic) == [1, 2, 3, 4, 5]
    sink.close()
    after = begun(broker, topic)  # another process, which knows nothing of what was sent
    deliver(after, 1, 4, 5)
    deliver(after, 2, 6)
    after.close()
    assert reading.values(broker.servers, topic) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_from_a_backup_is_refused_at_the_start_before_any_result_comes(
    broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    topic, query = a_topic(), table_stream(rows(1), name="events").filter("v % 2 = 1")
    put_back(query, tmp_path / "state", lambda: sinks.kafka(broker.servers, topic))
    with pytest.raises(QueryError, match=r"up to epoch 2, but the checkpoint ends with epoch 0, .* another topic"):
        LocalRun(query, tmp_path / "state", sink=sinks.kafka(broker.servers, topic))
    assert reading.values(broker.servers, topic) == [1, 3]


class Full:
    """A producer that has no room for every other message."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._room, self._held = False, 100

    def produce(self, topic: str, *_: Any, **__: Any) -> None:
        if not self._room:
            raise BufferError("Local: Queue full")
        self._room, self._held = False, self._held + 1
        self.sent.append(topic)

    def poll(self, _: float) -> None:
        pass

    def __len__(self) -> int:
        self._held -= 1
        self._room = True
        return max(self._held, 0)

    def flush(self, _: float) -> int:
        return 0

    def begin_transaction(self) -> None:
        self.sent.append("begin")

    def commit_transaction(self, _: float) -> None:
        self.sent.append("commit")


def test_the_note_of_an_epoch_waits_for_room_as_its_messages_do():
    writer: Any = object.__new__(the_sink._ResultProducer)
    writer.cluster, writer.topic, writer.name, writer.longest = (
        SimpleNamespace(named_errors=nullcontext),
        "t",
        "n",
        60.0,
    )
    writer.producer = Full()
    writer.write([kafka_messages.MessageColumns([b"1", b"2"], [None, None], [0, 0])], "epoch 0: 2 rows")
    assert writer.producer.sent == ["begin", "t", "t", EPOCHS, "commit"] and writer.mark == "epoch 0: 2 rows"


def test_two_results_and_two_queries_in_one_topic(broker: Broker, a_topic: TOPIC):
    topic = a_topic()
    sink = begun(broker, topic)
    deliver(sink, 7, 1)
    deliver(sink, 0, 2, query="another")
    for _ in range(2):
        sink.deliver(Delivery(QUERY, 3, "late:events", rows(3)))  # nobody began it
    sink.close()
    assert reading.values(broker.servers, topic) == [1, 2, 3]


def test_a_checkpoint_that_is_older_than_the_topic(broker: Broker, a_topic: TOPIC):
    topic = a_topic()
    sink = begun(broker, topic)
    deliver(sink, 5, 1)
    for epoch, value in ((4, 1), (5, 9)):
        with pytest.raises(
            QueryError, match=r"topic-\d+ of Kafka at .* contains other results of this query, up to epoch 5"
        ):
            deliver(sink, epoch, value)
    sink.close()
    assert reading.values(broker.servers, topic) == [1]


def test_what_was_not_committed_is_seen_by_nobody(broker: Broker, a_topic: TOPIC):
    """An epoch fails when some of its messages are with the broker; then it comes whole."""
    topic = a_topic()
    sink = begun(broker, topic)
    deliver(sink, 0, 1)
    writer = next(iter(sink._writers.values()))
    writer.producer.begin_transaction()
    writer.producer.produce(topic, b'{"v": 100}')
    writer.producer.flush()
    assert [row["v"] for row in reading.rows(broker.servers, topic)] == [1]
    writer.close(abort=True)
    assert len(reading.messages(broker.servers, topic, committed=False)) == 2
    sink._writers.clear()
    deliver(sink, 1, 2)
    sink.close()
    assert reading.values(broker.servers, topic) == [1, 2]


def test_an_older_run_is_fenced(broker: Broker, a_topic: TOPIC):
    topic = a_topic()
    older, newer = begun(broker, topic), begun(broker, topic)
    deliver(older, 0, 1)
    deliver(newer, 1, 2)
    with pytest.raises(SinkError, match="another run of this query delivers to topic"):
        deliver(older, 1, 2)
    deliver(newer, 2, 3)
    older.close()
    newer.close()
    assert reading.values(broker.servers, topic) == [1, 2, 3]


def test_a_transaction_that_the_broker_ended_comes_again(
    broker: Broker, a_topic: TOPIC, monkeypatch: pytest.MonkeyPatch
):
    """A process that stood still for longer than a transaction may take is not taken for an older run."""
    topic = a_topic()
    sink = begun(broker, topic, settings={"transaction.timeout.ms": 1000})
    send = the_sink._ResultProducer._all_sent

    def slow(writer: Any) -> None:
        send(writer)
        monkeypatch.setattr(the_sink._ResultProducer, "_all_sent", send)
        wait_until(lambda: len(reading.messages(broker.servers, topic, committed=False)) == 2)
        time.sleep(4)  # it is ended after one second, and looked at every second

    deliver(sink, 0, 1)
    monkeypatch.setattr(the_sink._ResultProducer, "_all_sent", slow)
    deliver(sink, 1, 2)
    sink.close()
    assert reading.values(broker.servers, topic) == [1, 2]


def wait_until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.1)


def test_a_transaction_of_another_query_is_waited_for(broker: Broker, a_topic: TOPIC, caplog: pytest.LogCaptureFixture):
    """While it is open nobody can read the epochs after it."""
    topic = a_topic()
    other = Producer({"bootstrap.servers": broker.servers, "transactional.id": "other"})
    first = begun(broker, topic)
    deliver(first, 0, 1)
    first.close()
    other.init_transactions()
    other.begin_transaction()
    other.produce(EPOCHS, b"epoch 0: 1 rows", b"other", 0)
    other.flush()

    def end() -> None:
        wait_until(lambda: "another query's transaction in topic headrace-epochs is still open" in caplog.text)
        other.abort_transaction()

    ending = threading.Thread(target=end)
    ending.start()
    sink = begun(broker, topic)
    with caplog.at_level(logging.WARNING):
        deliver(sink, 0, 1)
    ending.join()
    deliver(sink, 1, 2)
    sink.close()
    assert reading.values(broker.servers, topic) == [1, 2]


# --- messages ----------------------------------------------------------------------------------------------------------

D = decimal.Decimal
NOW = dt.datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=dt.UTC)
VALUES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {  # type, values, what JSON has
    "ts": (pa.timestamp("us", "UTC"), [NOW, NOW], ["2026-03-01T12:30:15.123456Z"] * 2),
    "local": (pa.timestamp("us"), [NOW.replace(tzinfo=None), None], ["2026-03-01T12:30:15.123456", None]),
    "big": (pa.int64(), [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
    "unsigned": (pa.uint64(), [2**64 - 1, None], [2**64 - 1, None]),
    "exact": (
        pa.decimal128(38, 18),
        [D("12345678901234567890.123456789012345678"), None],
        ["12345678901234567890.123456789012345678", None],
    ),
    "real": (pa.float64(), [0.1, 5e-324], [0.1, 5e-324]),
    "true": (pa.bool_(), [True, None], [True, None]),
    "bytes": (pa.binary(), [b"\x00\xff", b""], [base64.b64encode(b"\x00\xff").decode(), ""]),
    "Naughty \"name'; --": (pa.string(), ['"\\\n\x00\u2028é\U0001f600', None], ['"\\\n\x00\u2028é\U0001f600', None]),
    "day": (pa.date32(), [dt.date(2026, 3, 1), None], ["2026-03-01", None]),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4), None], ["01:02:03.000004", None]),
    "list": (pa.list_(pa.decimal128(5, 2)), [[D("1.50"), None], None], [["1.50", None], None]),
    "deep": (
        pa.list_(pa.struct([("a", pa.binary()), ("b", pa.list_(pa.timestamp("us", "UTC")))])),
        [[{"a": b"x", "b": [NOW]}, None], []],
        [[{"a": "eA==", "b": ["2026-03-01T12:30:15.123456Z"]}, None], []],
    ),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.float32())]),
        [{"a": 1, "b": 0.5}, None],
        [{"a": 1, "b": 0.5}, None],
    ),
    "map": (pa.map_(pa.string(), pa.binary()), [[("k", b"x"), ("l", None)], None], [{"k": "eA==", "l": None}, None]),
}
TABLE = pa.table({name: pa.array(given, kind) for name, (kind, given, _) in VALUES.items()})


def test_values_in_json(broker: Broker, a_topic: TOPIC):
    topic = a_topic()
    sink = begun(broker, topic, TABLE.schema)
    sink.deliver(Delivery(QUERY, 0, "result-0", TABLE))
    sink.close()
    found = reading.messages(broker.servers, topic)
    assert [message.timestamp()[1] for message in found] == [1772368215123] * 2, "the message's time is its event time"
    for number, message in enumerate(found):
        row = json.loads(message.value())
        assert row == {name: wanted[number] for name, (_, _, wanted) in VALUES.items()}
        assert list(row) == list(VALUES) and message.key() is None


def test_values_in_arrow(broker: Broker, a_topic: TOPIC):
    """As large as a topic takes, and no larger."""
    topic = a_topic(max_message_bytes="20000")
    table = pa.concat_tables([TABLE] * 200)
    sink = begun(broker, topic, TABLE.schema, format="arrow")
    sink.deliver(Delivery(QUERY, 0, "result-0", table))
    sink.close()
    sizes = [len(message.value()) for message in reading.messages(broker.servers, topic)]
    assert 3 < len(sizes) < 60 and max(sizes) < 20_000
    assert reading.table(broker.servers, topic).equals(table)


def test_keys():
    wanted: list[tuple[Any, list[bytes | None]]] = [
        ("big", [b"9223372036854775807", b"-9223372036854775808"]),
        ("Naughty \"name'; --", ['"\\\n\x00\u2028é\U0001f600'.encode(), None]),
        ("bytes", [b"\x00\xff", b""]),
        ("true", [b"true", None]),
        ("ts", [b"2026-03-01T12:30:15.123456Z"] * 2),
        (["day"], [b'{"day":"2026-03-01"}', b'{"day":null}']),
        (
            ["exact", "true"],
            [b'{"exact":"12345678901234567890.123456789012345678","true":true}', b'{"exact":null,"true":null}'],
        ),
    ]
    for key, keys in wanted:
        form = message_format("json", key)
        form.check(TABLE.schema)
        assert [each for some in form.messages(TABLE, 1000) for each in some.keys] == keys


def test_rows_of_one_key_stay_in_order(broker: Broker, a_topic: TOPIC):
    topic = a_topic(4)
    sink = begun(broker, topic, key="k")
    deliver(sink, 0, *range(1000))
    sink.close()
    for number in range(3):
        found = [m for m in reading.messages(broker.servers, topic) if m.key() == b"%d" % number]
        assert len({message.partition() for message in found}) == 1
        assert [json.loads(m.value())["v"] for m in found] == list(range(number, 1000, 3))


def test_times_before_1970(broker: Broker, a_topic: TOPIC):
    """Kafka has none: the message has the first, the row its own."""
    topic = a_topic()
    sink = begun(broker, topic)
    deliver(sink, 0, -5, 0)
    sink.close()
    assert [message.timestamp()[1] for message in reading.messages(broker.servers, topic)] == [1, 1]
    assert reading.rows(broker.servers, topic)[0]["ts"] == "1969-12-31T23:59:55.000000Z"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")], {"x": [float("nan")]}])
def test_numbers_that_json_does_not_have(value: Any):
    table = rows(1).append_column("x", pa.array([value]))
    with pytest.raises(SinkError, match=r"^column 'x' contains NaN or infinity, which JSON cannot represent"):
        list(message_format("json", None).messages(table, 1000))


def test_a_row_that_has_no_form_leaves_nothing(broker: Broker, a_topic: TOPIC):
    """Those before it are on their way already."""
    topic, most = a_topic(), kafka_messages.ROWS_TOGETHER
    good = rows(*range(most)).append_column("x", pa.array([0.5] * most))
    bad = rows(most).append_column("x", pa.array([float("nan")]))
    sink = begun(broker, topic, good.schema)
    with pytest.raises(SinkError, match="contains NaN or infinity"):
        sink.deliver(Delivery(QUERY, 0, "result-0", pa.concat_tables([good, bad])))
    deliver(sink, 1, 2)  # it is as good as before
    sink.close()
    assert reading.values(broker.servers, topic) == [2]


def test_a_message_that_is_too_large(broker: Broker, a_topic: TOPIC):
    """For the topic, and for the client."""
    topic = a_topic(max_message_bytes="2000")
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("text", pa.string())])
    for format in ("json", "arrow"):
        sink = begun(broker, topic, schema, format=format)
        for size in (3_000, 2_000_000):
            table = pa.table({"ts": pa.array([1], schema.field(0).type), "text": ["x" * size]})
            with pytest.raises(
                SinkError, match=r"MSG_SIZE_TOO_LARGE: .*; make the result smaller in the query, or raise both"
            ):
                sink.deliver(Delivery(QUERY, 0, "result-0", table))
        sink.close()
    assert reading.messages(broker.servers, topic) == []


# --- topics ------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there(broker: Broker, a_topic: TOPIC):
    """When the run is started; and deleted while it runs."""
    with pytest.raises(
        QueryError, match=r"there is no topic 'nobodys' in Kafka at .*; create it first, with the partitions"
    ):
        begun(broker, "nobodys")
    topic = a_topic()
    sink = begun(
        broker, topic, settings={"topic.metadata.propagation.max.ms": 500, "topic.metadata.refresh.interval.ms": 500}
    )
    deliver(sink, 0, 1)
    broker.delete(topic)
    with pytest.raises(QueryError, match=f"there is no topic '{topic}' in Kafka at"):
        deliver(sink, 1, 2)
    sink.close()


def test_the_topic_of_the_epochs(broker: Broker, a_topic: TOPIC):
    """It is made, and keeps the newest of every key; another kind is refused."""
    begun(broker, a_topic()).close()
    resource = the_sink_cluster(broker).admin_library.ConfigResource("topic", EPOCHS)
    kept = broker.admin.describe_configs([resource])[resource].result(60)
    assert kept["cleanup.policy"].value == "compact"
    library = import_module("confluent_kafka.admin")
    for policy in ("delete", "compact"):
        entry = library.ConfigEntry("cleanup.policy", policy, incremental_operation=library.AlterConfigOpType.SET)
        change = library.ConfigResource("topic", EPOCHS, incremental_configs=[entry])
        broker.admin.incremental_alter_configs([change])[change].result(60)
        if policy == "delete":
            with pytest.raises(QueryError, match="must keep the newest message of every key"):
                begun(broker, a_topic())


def the_sink_cluster(broker: Broker) -> Any:
    sink: Any = sinks.kafka(broker.servers, "x")
    return sink.cluster


def test_results_that_the_topic_would_not_keep(broker: Broker, a_topic: TOPIC, caplog: pytest.LogCaptureFixture):
    """Retention counts from the message's time, which may be of long ago: that is said, once."""
    sink = begun(broker, a_topic(retention_ms="3600000"))
    other = begun(broker, a_topic(retention_ms="3600000", message_timestamp_type="LogAppendTime"))
    with caplog.at_level(logging.WARNING):
        deliver(sink, 0, 1)
        deliver(sink, 1, 2)
        deliver(other, 0, 1)
    sink.close()
    other.close()
    assert [("may remove them at once" in record.getMessage()) for record in caplog.records] == [True]


# --- away --------------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_is_waited_for(
    broker: Broker, a_topic: TOPIC, impatient: None, caplog: pytest.LogCaptureFixture, seconds: float = 3.0
):
    topic = a_topic()
    sink = begun(broker, topic)
    deliver(sink, 0, 1, 2)
    broker.stop()
    timer = threading.Timer(seconds, broker.start)
    timer.start()
    with caplog.at_level(logging.WARNING):
        deliver(sink, 1, 3)
    timer.join()
    deliver(sink, 2, 4)
    sink.close()
    assert reading.values(broker.servers, topic) == [1, 2, 3, 4]
    said = [record.getMessage() for record in caplog.records]
    assert "is unreachable, the run waits: " in said[0] and "is reachable again after " in said[-1]


@pytest.mark.long
def test_a_broker_that_is_away_for_a_minute(
    broker: Broker, a_topic: TOPIC, impatient: None, caplog: pytest.LogCaptureFixture
):
    test_a_broker_that_is_away_is_waited_for(broker, a_topic, impatient, caplog, 60.0)
    assert sum("is unreachable" in record.getMessage() for record in caplog.records) >= 2, "it says so again"


def test_nobody_is_waited_for_without_end(broker: Broker, a_topic: TOPIC, impatient: None):
    topic = a_topic()
    short, stopped = begun(broker, topic, patience="0.3 seconds"), begun(broker, topic, patience="1 hour")
    broker.kill()
    try:
        with pytest.raises(SinkError, match=r"is unreachable \(after .* seconds\): "):
            deliver(short, 0, 1)
        threading.Timer(0.3, stopped.hurry).start()
        with pytest.raises(SinkError, match=r"is unreachable \(the run must end\): "):
            deliver(stopped, 0, 1)
        with pytest.raises(SinkError, match="cannot be reached: "):
            stopped.begin("result-0", rows().schema)
    finally:
        broker.start()
    deliver(short, 0, 1)
    short.close()
    stopped.close()
    assert reading.values(broker.servers, topic) == [1]


def through_kills(broker: Broker, topic: str, kills: int, random_: random.Random) -> None:
    """The broker dies some moments after a delivery began, and comes back."""
    sink, size = begun(broker, topic, patience="1 hour"), 20_000

    def die() -> None:
        time.sleep(random_.random() * 0.3)
        broker.kill()
        broker.start()

    for epoch in range(2 * kills):
        thread = threading.Thread(target=die if epoch % 2 else lambda: None)
        thread.start()
        deliver(sink, epoch, *range(epoch * size, (epoch + 1) * size))
        thread.join()
    sink.close()
    assert reading.values(broker.servers, topic) == list(range(2 * kills * size))


def test_a_broker_that_is_killed_in_a_delivery(broker: Broker, a_topic: TOPIC, impatient: None):
    through_kills(broker, a_topic(3), 2, random.Random(1))


@pytest.mark.long
def test_a_broker_that_is_killed_ten_times(broker: Broker, a_topic: TOPIC, impatient: None):
    through_kills(broker, a_topic(3), 10, random.Random())


# --- secrets, and what cannot be meant ---------------------------------------------------------------------------------


KEPT = "rd-4826"  # of the password; digits alone may be a part of an address or of a hash


def test_a_password_is_nowhere(
    broker: Broker,
    a_topic: TOPIC,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    impatient: None,
):
    topic = a_topic()
    settings = {**broker.login, "debug": "security,broker,conf"}
    sink: Any = sinks.kafka(broker.secured, topic, settings=settings)
    assert KEPT not in repr(sink) + str(sink.__dict__) + repr(sink.cluster)
    with caplog.at_level(logging.DEBUG):
        run = LocalRun(table_stream(rows(1), name="events"), tmp_path / "state", sink=sink)
        run.epoch(rows(1, 2))
        broker.stop()
        sink.patience.seconds = 0.2
        with pytest.raises(SinkError) as caught:
            run.epoch(rows(3))
        broker.start()
        run.close()
    assert sorted(caplog.text.split()) and KEPT not in f"{caught.value}{caught.value.__cause__}{caplog.text}"
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or KEPT.encode() not in path.read_bytes(), path
    for wrong in ({"sasl.username": "bert"}, {"sasl.password": f"{PASSWORD}8888"}):
        with pytest.raises(SinkError, match=r"cannot be reached: .*uthentication") as refused:
            sinks.kafka(broker.secured, topic, settings={**broker.login, **wrong}).begin("result-0", rows().schema)  # type: ignore[attr-defined]
        assert KEPT not in str(refused.value) and "8888" not in str(refused.value)
    said = capfd.readouterr()
    assert KEPT not in said.out + said.err and reading.values(broker.servers, topic) == [1, 2]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "xml"}, "format is 'json' or 'arrow'; found 'xml'"),
        ({"key": []}, "key takes a column, or a list of columns"),
        ({"key": [3]}, "key takes a column, or a list of columns"),
        ({"key": "k", "format": "arrow"}, "an Arrow message contains many rows"),
        ({"settings": {"acks": "1"}}, "'acks' is set by headrace"),
        ({"settings": {"bootstrap.servers": "x:1"}}, "give 'bootstrap.servers' as servers"),
        ({"settings": {"sasl.password": b"4826"}}, "'sasl.password' is bytes"),
        ({"servers": "host"}, "give the cluster's brokers as host:port"),
        ({"servers": "kafka://anna:4826@host:9092"}, "give the cluster's brokers as host:port"),
        ({"topic": ""}, "kafka takes the name of a topic"),
        ({"topic": EPOCHS}, "other than headrace-epochs, in which headrace records"),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], what: str):
    with pytest.raises(QueryError, match=what) as caught:
        sinks.kafka(**{"servers": "127.0.0.1:9092", "topic": "t", **options})
    assert "4826" not in str(caught.value)


def test_settings_that_no_client_has():
    sink: Any = sinks.kafka("127.0.0.1:9092", "t", settings={"no.such.setting": "4826"})
    with pytest.raises(QueryError, match=r"a Kafka client rejects the settings: .*no\.such\.setting"):
        sink.begin("result-0", rows().schema)


def test_columns_that_have_no_form():
    nested = pa.schema([("m", pa.list_(pa.map_(pa.int64(), pa.int64())))])
    for schema, key, what in (
        (nested, None, "column 'm' has type map.*in JSON the keys of a map are text"),
        (rows().schema, "nobody", "key: there is no column 'nobody'; the results have ts, k, v"),
        (pa.schema([("x", pa.float64())]), ["x"], "key: column 'x' is double"),
    ):
        with pytest.raises((QueryError, QueryTypeError), match=what):
            sinks.kafka("127.0.0.1:9092", "t", key=key).begin("result-0", schema)  # type: ignore[attr-defined]


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'headrace\[kafka\]'"):
        sinks.kafka("127.0.0.1:9092", "t")
