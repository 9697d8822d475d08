"""Secrets in settings: found by name, by shape and by `hr.secret`, and in no text or file; whatever they look like."""

from __future__ import annotations

import json
import logging
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver.identity import check_source_places
from headrace.errors import HeadraceError, MissingSecret, QueryChanged, QueryError, QueryTypeError, SinkError
from headrace.sinks.patience import Unreachable
from headrace.sources.kafka.client import checked_servers
from headrace.state.manifest import Manifest, SourceState
from headrace.support.secrets import (
    HIDDEN,
    SealedSettings,
    is_secret_name,
    mask_secrets,
    resolve_secrets,
    secret,
    without_logins,
)
from headrace.testing import LocalRun, check_processor, table_stream

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("k", pa.int64())])
ROWS = pa.table({"ts": pa.array([1, 2], pa.int64()).cast(TS), "k": [1, 2]}, schema=SCHEMA)

PLANTED = "hunter2"  # a part of every secret here
ODD = "2024#hunter2?[x]&y=z;é/:@%\"'\\ \t"  # every character that URLs, connection strings or JSON reserve
KEY = f"-----BEGIN PRIVATE KEY-----\nMIGH{PLANTED}\n{PLANTED}AgEA\n-----END PRIVATE KEY-----"
SHAPES: dict[str, dict[str, Any]] = {  # settings of a processor, or of anything else
    "a password": {"password": ODD},
    "other names": {"pwd": PLANTED, "passphrase": PLANTED, "Authorization": PLANTED, "auth": ("ann", PLANTED)},
    "nested in dicts": {"kafka": {"sasl.password": PLANTED, "more": {"clientSecret": PLANTED}}},
    "nested in lists": {"servers": [{"host": "h", "token": PLANTED}, {"tokens": [PLANTED]}]},
    "pairs": {"options": [("user", "ann"), ("sasl.password", PLANTED)]},
    "a login in a URL": {"url": f"postgresql://ann:{quote(ODD, safe='')}@h/db"},
    "a login with reserved characters": {"url": "https://ann:12/3#hunter2?x@y@h/db"},
    "a parameter of a URL": {"url": f"https://h/x?sv=1&sig={PLANTED}", "other": f"https://h?passwor%64={PLANTED}"},
    "a connection string": {
        "dsn": f"host=h user=ann password='{PLANTED} x'",
        "hub": f"AccountName=a;AccountKey={PLANTED}==",
    },
    "a connection string with spaces": {"dsn": f"host=h password = {PLANTED}", "other": f"Pwd : {PLANTED}"},
    "a login in a name": {"stores": {f"https://ann:{PLANTED}@h/x": 1}, "pairs": [[f"https://ann:{PLANTED}@h/x", "y"]]},
    "a login under a name for addresses": {
        "token_url": f"https://ann:{PLANTED}@h/x",
        "webhook_url": f"https://h/{PLANTED}",
    },
    "headers": {"headers": {"X-Api-Key": PLANTED, "accept": "*/*"}, "header": f"Bearer {PLANTED}"},
    "keys": {"private_key": KEY, "pem": KEY, "content": KEY, "access_key": PLANTED, "jwt": f"eyJ{PLANTED}.{PLANTED}.x"},
    "not text": {"password": 4711_4711, "token": b"hunter2", "credentials": {"pin": 4711_4711}},
}


class Held(hr.Processor):
    """Passes tuples on; `fails` says with what it fails."""

    schema = SCHEMA

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return tuples


def holds(text: str) -> bool:
    return PLANTED in text or "47114711" in text


def held(processor: hr.Processor) -> hr.Stream:
    return table_stream(SCHEMA.empty_table(), name="events").split(2, by=["k"]).apply(processor)


def run_once(query: hr.Stream, folder: Path, rows: pa.Table = ROWS) -> dict[str, str]:
    """An epoch; what the manifest says of the code."""
    run = LocalRun(query, folder)
    try:
        run.epoch(rows)
        assert run.store.last is not None
        return dict(run.store.last.versions)
    finally:
        run.close()


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


# --- which values are secret ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWD", "db_pwd", "sslpassword", "sasl.password", "Passwort", "passphrase", "db_pass"),
        *("secret", "clientSecret", "aws_secret_access_key", "token", "authToken", "sas_token", "s3.session-token"),
        *("api_key", "apiKey", "APIKEY", "X-Api-Key", "private_key", "privateKey", "account-key", "decryption_key"),
        *("Authorization", "header.Authorization", "credential", "credentials", "creds", "sig", "sas", "ssl.key.pem"),
        *("sasl.jaas.config", "sasl.oauthbearer.config", "webhook_url", "fs.azure.account.key.name.core.net"),
        *("schema.registry.basic.auth.user.info", "pat", "PAT", "secret_id", "s3.access-key-id"),
    ],
)
def test_names_of_secrets(name: str):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer", "key", "keys", "primary_key", "key_columns", "sort_key", "session_key", "ssl.key.location", "key.serializer"),
        *("author", "passenger", "compass", "bypass", "monkey", "sasl.mechanism", "sasl.username", "user", "limit", "every"),
        *("password_column", "tokenUrl", "sasl.oauthbearer.token.endpoint.url", "token_uri", "password_file", "secret_path"),
        *("secretName", "token_type", "credential_id", "token_host", "credentials_port", "path", "pattern", "user_pat"),
    ],
)  # fmt: skip
def test_names_that_only_look_like_those_of_secrets(name: str):
    assert not is_secret_name(name)


def test_numbers_are_secret_only_where_the_name_ends_so():
    given = {"max_tokens": 100, "token_limit": 5, "password_length": 8, "use_token": True, "password": None}
    assert mask_secrets(given) == given
    assert mask_secrets({"password": 4711, "pin": {"token": 4711}}) == {"password": HIDDEN, "pin": {"token": HIDDEN}}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_masked_stays_so(shape: str):
    found = json.loads(json.dumps(mask_secrets(SHAPES[shape])))
    assert not holds(json.dumps(found)) and HIDDEN in json.dumps(found)
    assert mask_secrets(found) == found, "a manifest is compared with what it was made of"


def test_texts_that_hold_no_secret_are_shown():
    for text in ("https://host/x?a=1#y", "s3://bucket/x", "n % 4", "12:30:00", "the key: a column", "a = 1 and b = 2"):
        assert mask_secrets({"x": text}) == {"x": text}


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_of_others_are_shown_without_secrets(shape: str):
    """An error of a library may spell a secret in another way."""
    for value in texts_of(SHAPES[shape]):
        for text in (
            value,
            quote(value),
            repr(value),
            json.dumps(value),
            " ".join(value.split()),
            value.split("\n")[-1],
        ):
            found = SealedSettings(SHAPES[shape]).without_secrets(f"refused: {text} at the store")
            assert not holds(found) and found.startswith("refused: ") and found.endswith(" at the store"), (text, found)


def texts_of(value: Any) -> list[str]:
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return [str(value)] if each is None else [text for item in each for text in texts_of(item) if holds(text)]


def test_a_short_secret_is_removed_only_where_it_stands_alone():
    assert SealedSettings({"password": "ab"}).without_secrets("cab 'ab' ab=1 abc") == "cab '***' ***=1 abc"
    sealed = SealedSettings({"url": "postgresql://postgres:postgres@h/postgres"})
    assert sealed.without_secrets("postgresql is up, postgres1: (postgres)") == "postgresql is up, postgres1: (***)"
    assert sealed.without_secrets("ann%3Apostgres%40h a_postgres_b\\npostgres\\n") == "ann%3A***%40h a_***_b\\n***\\n"
    assert SealedSettings({"password": "#x1!"}).without_secrets("ann#x1!host #x12!") == "ann***host #x12!"
    assert SealedSettings({"password": "postgres12"}).without_secrets("xpostgres12y") == "x***y"


def test_what_can_be_shown_stays_whole():
    sealed = SealedSettings({"password": "kafka"}, kept="kafka:9092")
    assert sealed.without_secrets("kafka:9092 refuses kafka") == "kafka:9092 refuses ***"
    for secret_of_it in ("kafka:9092", "kafka:9092/x"):
        assert SealedSettings({"password": secret_of_it}, kept="kafka:9092").without_secrets(secret_of_it) == HIDDEN


def test_a_place_keeps_what_tells_sources_apart():
    for place in ("FileSource[s3a://bucket/a@b]", "hdfs://host:8020/a@b", "/data/x@y", "Kafka: a, b"):
        assert without_logins(place) == place
    for login in ("key:se/cr@et", "key:sec#ret", "key", ""):
        assert without_logins(f"s3a://{login}@bucket/x").endswith("bucket/x")
        assert "se" not in without_logins(f"s3a://{login}@bucket/x")[3:] or "@" in login


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs", "ABFSS"])
def test_a_container_of_azure_is_a_part_of_the_place(scheme: str):
    first, second = (f"FileSource[{scheme}://{name}@acct.dfs.core.windows.net/x]" for name in ("c1", "c2"))
    assert without_logins(first) == first and without_logins(second) == second
    with pytest.raises(QueryChanged, match="c1@acct"):
        check_source_places(read_by(first), {"events": second}, {}, ())


def read_by(place: str) -> Manifest:
    """A manifest whose source read a place."""
    return Manifest("state", 1, None, "run", sources={"events": SourceState(place=place)})


# --- values of the environment ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_where_it_is_needed_and_known_by_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANTED", PLANTED)
    made = secret("PLANTED")
    assert made.value == PLANTED and made == pickle.loads(pickle.dumps(made)) and hash(made)
    assert repr(made) == f"{made!r}" == "secret('PLANTED')" and PLANTED not in str(pickle.dumps(made))
    plain: dict[str, Any] = {"a": [1, {"b": (2, "x")}], "c": {3}}
    assert resolve_secrets(plain) is plain
    assert resolve_secrets({"a": [1, {"b": (made, "x")}], "c": made}) == {"a": [1, {"b": (PLANTED, "x")}], "c": PLANTED}
    assert mask_secrets({"password": made, "tokens": [made]}) == {"password": made, "tokens": [made]}


@pytest.mark.parametrize(
    "write",
    [
        lambda made: f"postgresql://ann:{made}@h/db",
        lambda made: f"postgresql://ann:{made:>9}@h/db",
        lambda made: "postgresql://ann:{}@h/db".format(made),  # noqa: UP032
        lambda made: "postgresql://ann:%s@h/db" % made,  # noqa: UP031
        str,
    ],
)
def test_a_secret_is_no_part_of_a_text(write: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch):
    """The name of the variable would be used as the password."""
    monkeypatch.setenv("PLANTED", PLANTED)
    with pytest.raises(
        QueryTypeError, match=r"secret\('PLANTED'\) has no text.* put the whole value into the variable PLANTED"
    ) as caught:
        write(secret("PLANTED"))
    assert PLANTED not in str(caught.value)


def test_a_variable_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PLANTED", raising=False)
    with pytest.raises(MissingSecret, match=rf"variable PLANTED is not set in process {os.getpid()} on "):
        secret("PLANTED").value
    monkeypatch.setenv("PLANTED", "")
    with pytest.raises(MissingSecret, match="variable PLANTED is empty"):
        secret("PLANTED").value
    assert isinstance(MissingSecret(), HeadraceError)


@pytest.mark.parametrize("given", ["hunter2!", "", None, b"hunter2", "hunter2\n", "A=hunter2"])
def test_what_is_no_name_may_be_the_secret_itself(given: Any):
    with pytest.raises(QueryError, match="takes the name of an environment variable") as caught:
        secret(given)
    assert PLANTED not in str(caught.value)


# --- processors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_of_a_processor_is_in_no_file_and_no_text(
    shape: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(0):
        for limit in (1, 2):
            query = held(Held(**SHAPES[shape], limit=limit))
            said = run_once(query, tmp_path)
    assert f'"limit": {limit}' in said["apply-1"] and all(name in said["apply-1"] for name in SHAPES[shape])
    texts = (repr(query), query.explain(slots=2), str(query.plan(slots=2).to_json()), caplog.text, str(said))
    assert not any(map(holds, texts)) and not holds(stored(tmp_path).decode(errors="replace"))
    assert "continues with the state" in caplog.text and '"limit": 1' in caplog.text


def test_another_password_is_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A digest would be enough to guess a short one."""
    for password in ("hunter2", "hunter3"):
        run_once(held(Held(kafka={"sasl.password": password})), tmp_path)
    assert not caplog.text


def test_a_secret_of_the_environment_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    seen = []

    class Seeing(Held):
        def open(self, substream: int, substreams: int) -> None:
            seen.append((self.header, self.kafka["sasl.password"], self.limit))  # type: ignore[attr-defined]

    def query(name: str) -> hr.Stream:
        return held(Seeing(header=secret("HEADER"), kafka={"sasl.password": secret(name)}, limit=3))

    for name in ("HEADER", "FIRST", "SECOND"):
        monkeypatch.setenv(name, f"{PLANTED}-{name}")
    said = run_once(query("FIRST"), tmp_path)["apply-1"]
    assert said.endswith(
        """settings {"header": "secret('HEADER')", "kafka": {"sasl.password": "secret('FIRST')"}, "limit": 3}"""
    )
    later = pa.array([1000, 2000], pa.int64()).cast(TS)
    run_once(query("SECOND"), tmp_path, ROWS.set_column(0, "ts", later))
    assert set(seen) == {(f"{PLANTED}-HEADER", f"{PLANTED}-{name}", 3) for name in ("FIRST", "SECOND")}
    assert "secret('SECOND')" in caplog.text and not holds(caplog.text) and PLANTED.encode() not in stored(tmp_path)
    assert hr.reference(table_stream(ROWS, name="events").split(2, by=["k"]).apply(Seeing(header=secret("HEADER"), kafka={"sasl.password": "x"}, limit=3))).num_rows == 2  # fmt: skip
    check_processor(Held(token=secret("HEADER")), ROWS, by=["k"])


def test_a_processor_that_misses_a_secret_is_named(tmp_path: Path):
    with pytest.raises(MissingSecret, match=r"Held on substream \d of 2: secret\('NOT_THERE'\) cannot be read"):
        run_once(held(Held(token=secret("NOT_THERE"))), tmp_path)
    with pytest.raises(MissingSecret, match="NOT_THERE"):
        hr.reference(table_stream(ROWS, name="events").split(2, by=["k"]).apply(Held(token=secret("NOT_THERE"))))


class OnTheClass(Held):
    token: Any = {"token": [secret("PLANTED")]}


def test_a_secret_on_the_class_of_a_processor_is_refused():
    """It is not read there; a processor would use the declaration in place of the value."""
    with pytest.raises(
        QueryTypeError, match=r"OnTheClass.token is a secret .* self.token = hr.secret\(...\) in __init__"
    ):
        held(OnTheClass())
    held(OnTheClass(token=secret("PLANTED")))


class Failing(Held):
    """Fails with an error that quotes its settings, as libraries do."""

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        try:
            raise OSError(f"no answer from {self.url}")  # type: ignore[attr-defined]
        except OSError as error:
            raise ConnectionError(f"cannot log in with {self.token}") from error  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["engine", "reference"])
def test_an_error_of_a_processor_that_quotes_a_secret(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANTED", f"{PLANTED}-env")
    rows = table_stream(ROWS, name="events").split(2, by=["k"])
    for settings in ({"url": f"https://h?sig={PLANTED}", "token": "x"}, {"url": "u", "token": secret("PLANTED")}):
        query = rows.apply(Failing(**settings))
        with pytest.raises(hr.DataError, match=r"ConnectionError: cannot log in with") as caught:
            run_once(query, tmp_path / str(len(settings["url"]))) if way == "engine" else hr.reference(query)
        assert PLANTED not in "".join(traceback.format_exception(caught.value)) and caught.value.__cause__ is None
    with pytest.raises(hr.DataError) as caught:
        query = rows.apply(Failing(url="u", token=None))
        run_once(query, tmp_path / "plain") if way == "engine" else hr.reference(query)
    assert isinstance(caught.value.__cause__, ConnectionError), "what holds no secret stays"


def test_a_value_that_is_no_setting_is_not_quoted():
    class Client:
        def __repr__(self) -> str:
            return f"Client({PLANTED})"

    with pytest.raises(QueryError, match="client: found a value of type Client") as caught:
        held(Held(client=Client()))
    assert PLANTED not in str(caught.value)
    held(Held(password=Client()))  # as before: what is secret by name may be anything


# --- sinks and sources -----------------------------------------------------------------------------------------------------------


def sinks_of(folder: Path) -> dict[str, Callable[[Any], Any]]:
    return {
        "kafka": lambda value: hr.sinks.kafka("127.0.0.1:1", "t", settings={"sasl.password": value, "client.rack": value}),
        "delta": lambda value: hr.sinks.delta("s3://b/t", storage_options={"aws_secret_access_key": value, "region": value}),
        "iceberg": lambda value: hr.sinks.iceberg("n.t", catalog={"uri": f"sqlite:///{folder}/c.db", "token": value, "x": value}),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["kafka", "delta", "iceberg"])
def test_a_sink_takes_secrets_of_the_environment(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make = sinks_of(tmp_path)[kind]
    with pytest.raises(MissingSecret, match="NOT_THERE"):
        make(secret("NOT_THERE"))
    monkeypatch.setenv("PLANTED", PLANTED)
    for value in (secret("PLANTED"), PLANTED):
        sink = make(value)
        given = sink.cluster._given if kind == "kafka" else sink._given
        assert PLANTED in str(given.opened)
        assert given.without_secrets(f"login {PLANTED}") == f"login {HIDDEN}"
    sink = make(secret("PLANTED"))
    assert not holds(f"{sink!r} {vars(sink)}") and "secret" not in repr(sink)


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_the_url_of_a_database_may_be_secret(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Then no part of it is shown, though the path of a file would be."""
    folder = tmp_path / PLANTED
    monkeypatch.setenv("DB_URL", f"{scheme}:///{folder}/x.db")
    with pytest.raises(QueryError, match=r"cannot be at secret\('DB_URL'\)") as wrong:
        hr.sinks.database(secret("DB_URL"), "t")
    folder.mkdir()
    (folder / "x.db").write_bytes(b"no database" * 1000)
    sink: Any = hr.sinks.database(secret("DB_URL"), "t", patience="0 seconds")
    with pytest.raises(HeadraceError, match=r"secret\('DB_URL'\)") as caught:
        sink.begin("result-0", SCHEMA)
    assert repr(sink) == "database(secret('DB_URL'), 't')"
    assert not holds("".join(traceback.format_exception(caught.value)) + str(wrong.value) + repr(sink.patience.name))
    (folder / "x.db").unlink()
    sink.begin("result-0", SCHEMA)
    monkeypatch.setenv("DB_URL", PLANTED)
    with pytest.raises(QueryError, match=r"secret\('DB_URL'\) contains no such URL") as none:
        hr.sinks.database(secret("DB_URL"), "t")
    assert not holds(str(none.value))


def test_a_source_takes_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLANTED", PLANTED)
    servers = checked_servers("127.0.0.1:1", {"sasl.password": secret("PLANTED"), "client.rack": secret("PLANTED")})
    sent = pickle.loads(pickle.dumps(servers))
    monkeypatch.delenv("PLANTED")
    for each in (servers, sent):
        assert each.describe(f"login {PLANTED}") == f"login {HIDDEN}" and not holds(f"{each!r} {vars(each)}")
        assert each._common()["sasl.password"] == PLANTED, "tasks need not have the variable"
    with pytest.raises(MissingSecret, match="PLANTED"):
        checked_servers("127.0.0.1:1", {"sasl.password": secret("PLANTED")})
    with pytest.raises(QueryError) as caught:
        checked_servers(f"kafka://ann:{PLANTED}@h:1", {"security.protocol": "nonsense"})
    assert not holds("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("servers", [secret("BROKERS"), ["127.0.0.1:1", secret("BROKERS")]])
def test_addresses_that_are_shown_are_no_secrets(servers: Any):
    for make in (
        lambda: hr.sinks.kafka(servers, "t"),
        lambda: checked_servers(servers, None),
        lambda: hr.sinks.delta(servers),
    ):
        with pytest.raises(QueryTypeError, match=r"as text.*; found .*secret\('BROKERS'\)"):
            make()


REFUSAL = 'connection to server at "db.example" (10.0.0.1), port 5432 failed: FATAL: password failed for user "postgres" of postgresql'


def refusal_of(url: Any) -> str:
    """What a sink says if libpq refuses a login."""
    database: Any = hr.sinks.database(url, "t").database  # type: ignore[attr-defined]
    with pytest.raises(Unreachable) as caught, database._named_errors():
        raise database._driver.OperationalError(REFUSAL, status_code=1)
    return str(caught.value)


def test_an_error_of_postgresql_keeps_what_can_be_shown(monkeypatch: pytest.MonkeyPatch):
    url = "postgresql://postgres:postgres@db.example:5432/postgres"
    assert refusal_of(url) == f"postgresql://postgres@db.example:5432/postgres: {REFUSAL}".replace(
        '"postgres"', '"***"'
    )
    monkeypatch.setenv("DB_URL", url)
    assert refusal_of(secret("DB_URL")) == (
        'secret(\'DB_URL\'): connection to server at "***" (***), port *** failed: FATAL: password failed for user "***" of postgresql'
    )


class Client:
    def __repr__(self) -> str:
        return f"Client({PLANTED})"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "no such file", f"/x/{PLANTED}"),
        PermissionError(13, f"refused {PLANTED}"),
        ValueError(Client()),
        KeyError({"login": PLANTED}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_holds_a_secret_beside_its_text_is_replaced(error: Exception):
    with (
        pytest.raises(HeadraceError, match=f"^{type(error).__name__}: .*") as caught,
        SealedSettings({"token": PLANTED}).hiding(),
    ):
        raise error
    assert HIDDEN in str(caught.value) and caught.value.__context__ is caught.value.__cause__ is None
    assert not holds("".join(traceback.format_exception(caught.value)))
    with pytest.raises(type(error)), SealedSettings({"token": "other"}).hiding():
        raise error


def test_an_error_of_a_store_holds_no_secret_nor_does_what_led_to_it(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    delta: Any = hr.sinks.delta(
        f"s3://{PLANTED}@b/t?sig={PLANTED}",
        storage_options={"aws_secret_access_key": PLANTED, "aws_endpoint": f"http://ann:{PLANTED}@127.0.0.1:1", "aws_region": "x", "max_retries": "0", "retry_timeout": "1s"},
    )  # fmt: skip
    iceberg: Any = hr.sinks.iceberg(
        "n.t",
        catalog={"type": "sql", "uri": f"sqlite://ann:{PLANTED}@h{tmp_path}", "token": PLANTED},
    )
    for sink in (delta, iceberg):
        with caplog.at_level(logging.DEBUG, "headrace"), pytest.raises(HeadraceError) as caught:
            sink.begin("result-0", SCHEMA)
        error: BaseException | None = caught.value
        texts = [repr(sink), str(vars(sink)), "".join(traceback.format_exception(error)), caplog.text]
        while error is not None:
            texts += [str(error), repr(error), str(vars(error))]
            error = error.__context__
        assert isinstance(caught.value, SinkError) and not any(map(holds, texts)), texts


def test_sets_of_tuples_are_settings_too():
    assert mask_secrets({"pairs": {(1, 2), (3, 4)}, "sets": {frozenset({1})}}) == {
        "pairs": {(1, 2), (3, 4)},
        "sets": {frozenset({1})},
    }
