"""Places of other kinds are refused wherever a path is taken, and never become a folder of that name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import deployment
from headrace.cli import app
from headrace.control.policy import parse_policy
from headrace.run.checkpoint_path import make_checkpoint
from headrace.state import StateStore, open_storage
from headrace.support.paths import given_path, mounted_path
from headrace.testing import table_stream
from headrace_demo.workloads.writing import new_folder
from tests.memory import MemoryStorage

OTHERS = ["s3a://bucket/ck", "s3://bucket/ck", "hdfs://host:9000/ck", "abfss://c@a.dfs.core.windows.net/ck", "gs://b/c"]
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC"))])

TAKERS = {
    "a checkpoint": make_checkpoint,
    "a sink": hr.sinks.parquet,
    "files": lambda path: hr.files(None, path, time="ts", schema=SCHEMA),
    "a store": StateStore.open,
    "a storage": open_storage,
    "a policy": parse_policy,
    "a made-up stream": new_folder,
    "a descriptor": deployment.read_descriptor,
}


@pytest.mark.parametrize("place", OTHERS)
@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("kind", [str, Path])
def test_every_taker_of_a_path_names_the_scheme_and_makes_nothing(taker, place, kind, tmp_path, monkeypatch):
    """Also of a `Path`, which has made one slash of two."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hr.QueryError) as error:
        TAKERS[taker](kind(place))
    scheme = place.partition(":")[0]
    assert f"does not support the scheme {scheme!r}" in str(error.value)
    assert "file:///folder; mount it and give its mounted path" in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["state", "plan", "packages"])
def test_a_descriptor_with_another_scheme_in_it(key, tmp_path):
    value = '["s3a://bucket/x.py"]' if key == "packages" else '"s3a://bucket/x"'
    lines = {"master": '"local[1]"', "state": '"ck"', key: value}
    (tmp_path / "c.toml").write_text("\n".join(f"{k} = {v}" for k, v in lines.items()))
    with pytest.raises(hr.DeploymentError, match="scheme 's3a'"):
        deployment.read_descriptor(tmp_path / "c.toml")


COMMANDS = [
    ["run", "q.py", "--checkpoint"],
    ["run", "q.py", "--out"],
    ["run", "q.py", "--late"],
    ["run", "q.py", "--plan"],
    ["run", "q.py", "--policy"],
    ["run"],
    ["deploy", "q.py", "--to"],
    ["deploy", "q.py", "--to", "c.toml", "--out"],
    ["explain"],
    ["explain", "q.py", "--figures"],
    ["explain", "--checkpoint"],
    ["decisions", "--checkpoint"],
    ["calibrate"],
    ["calibrate", "q.py", "--out"],
    ["generate"],
    ["bench", "join", "--quick", "--only", "no such case", "--json"],
    ["bench", "join", "--quick", "--only", "no such case", "--charts"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_path_of_the_command_line(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*command, "s3a://bucket/place"], env={"COLUMNS": "500", "TERM": "dumb"})
    assert result.exit_code == 2, result.output
    assert "does not support the scheme 's3a'" in result.output
    assert list(tmp_path.iterdir()) == []


def test_file_is_a_scheme_and_a_colon_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a b", Path(f"file://{tmp_path}/a b")):
        assert given_path(text, "it") == tmp_path / "a b"
    for plain in ("a:b", "a:b/c", "a", "/x:/y", "C:/x", "./s3a://x"):
        assert mounted_path(plain, "it") == Path(plain)
    with pytest.raises(hr.QueryError, match="another machine"):
        mounted_path("file://host/x", "it")
    (tmp_path / "ab:").mkdir()
    assert mounted_path("ab:/c", "it") == Path("ab:/c"), "a folder that is really called so"
    with pytest.raises(hr.QueryError):
        mounted_path("ab://c", "it")


def test_a_run_on_a_file_uri(tmp_path):
    s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC"))}))
    with StateStore.open(f"file://{tmp_path}/state") as store:
        assert store.storage.uri == str(tmp_path / "state")
        assert open_storage(store.storage.uri).uri == store.storage.uri
        with pytest.raises(hr.WriterConflict):
            open_storage(store.storage.uri).lease()
    assert s.columns == ["ts"]


def test_a_storage_in_memory_has_one_writer_too():
    storage = MemoryStorage()
    lease = storage.lease()
    with pytest.raises(hr.WriterConflict):
        storage.lease()
    lease.release()
    storage.lease().release()
