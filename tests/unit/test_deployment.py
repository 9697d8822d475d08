"""Deployment descriptors: what they mean, every way to get one wrong, and masters that do not answer."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import cli, deployment
from headrace.cli import quiet_session
from headrace.deployment import DeploymentDescriptor, check_master, read_descriptor
from tests.patience import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.toml"
LEAST = 'master = "spark://host:7077"\nstate = "/shared/fraud"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def read_text(folder: Path, text: str) -> DeploymentDescriptor:
    return read_descriptor(written(folder, text))


# --- what it means -------------------------------------------------------------------------------------------------


def test_two_keys_are_enough(tmp_path: Path) -> None:
    found = read_text(tmp_path, LEAST)
    assert found == DeploymentDescriptor("spark://host:7077", Path("/shared/fraud"))
    assert found.size == "1 executor with 1 core and 1g each"
    assert found.settings() == {
        "spark.executor.instances": "1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.cores.max": "1",
        "spark.executorEnv.PYTHONPATH": "",
    }


def test_every_key(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "__init__.py").write_text("")
    (tmp_path / "plan.json").write_text("{}")
    found = read_text(
        tmp_path,
        """
        master = "spark://one:7077,[::1]:7078"
        state = "ckpts/fraud"
        executors = 3
        cores = 2
        memory = "800M"
        slots = 4
        splitters = 3
        physical_window = "4 MiB"
        epoch = "0 seconds"
        plan = "plan.json"
        ship = false
        packages = ["helpers.py", "rules", "./helpers.py"]
        python = "/opt/python"
        patience = "2 minutes"
        [spark]
        network.timeout = "30s"
        locality.wait = 0
        "spark.speculation" = true
        "speculation.interval" = "1s"
        """,
    )
    assert found.state == tmp_path / "ckpts/fraud"
    assert found.plan == tmp_path / "plan.json"
    assert found.packages == (tmp_path / "helpers.py", tmp_path / "rules")
    assert found.size == "3 executors with 2 cores and 800M each"
    assert found.shipped() == ["helpers.py", "rules"]
    assert (found.slots, found.epoch, found.patience) == (4, "0 seconds", "2 minutes")
    assert (found.splitters, found.physical_window) == (3, "4 MiB")
    assert found.settings() == {
        "spark.executor.instances": "3",
        "spark.executor.cores": "2",
        "spark.executor.memory": "800M",
        "spark.cores.max": "6",
        "spark.pyspark.python": "/opt/python",
        "spark.network.timeout": "30s",
        "spark.locality.wait": "0",
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
    }


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_masters_that_say_how_large_they_are(tmp_path: Path, master: str) -> None:
    found = read_text(tmp_path, f'master = "{master}"\nstate = "s"\n')
    sizes = {"local": (1, 1), "local[*]": (1, deployment.usable_cores()), "local-cluster[2,1,1024]": (2, 1)}
    assert (found.executors, found.cores) == sizes.get(master, (1, 2))
    assert ("spark.executor.memory" in found.settings()) == (not found.is_local)
    check_master(master)  # nobody to ask
    with pytest.raises(hr.DeploymentError, match="already gives the size; leave out executors, memory"):
        read_text(tmp_path, f'master = "{master}"\nstate = "s"\nexecutors = 2\nmemory = "1g"\n')


def test_a_local_cluster_gives_executors_all_of_a_worker(tmp_path: Path) -> None:
    found = read_text(tmp_path, 'master = "local-cluster[2, 3, 1024]"\nstate = "s"\n')
    assert found.size == "2 executors with 3 cores and 1024m each"
    assert found.settings()["spark.cores.max"] == "6"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host:6443"])
def test_other_clusters_are_passed_through(tmp_path: Path, master: str) -> None:
    found = read_text(tmp_path, f'master = "{master}"\nstate = "s"\nexecutors = 2\n')
    assert found.settings()["spark.executor.instances"] == "2"
    check_master(master)


def test_the_example_names_every_key() -> None:
    text = EXAMPLE.read_text()
    missing = [key for key in deployment.KINDS if f"{key} = " not in text and f"[{key}]" not in text]
    assert missing == []
    assert read_descriptor(EXAMPLE).executors == 2


def test_the_example_is_valid_with_everything_switched_on(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(), flags=re.MULTILINE)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "helpers.py").write_text("")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "__init__.py").write_text("")
    found = read_text(tmp_path, text)
    assert found.plan and found.packages and found.python and found.slots
    assert found.splitters and found.physical_window


# --- every way to get it wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'master' is missing; add a line such as master = \"spark://host:7077\""),
        ('master = "yarn"', "'state' is missing; add a line such as state = \"/shared/checkpoints/fraud\""),
        (
            LEAST + "executor = 2",
            "unknown key 'executor'; did you mean 'executors'? The keys are master, state, executors",
        ),
        (LEAST + "zzz = 2", "unknown key 'zzz'; The keys are master"),
        (LEAST + '"spark.ui.enabled" = true', "put Spark settings into the table [spark]"),
        (LEAST + "[sparks]\nx = 1", "unknown key 'sparks'; did you mean 'spark'?"),
        (LEAST + "spark = 3", "spark must be a table of Spark settings; found 3"),
        (LEAST + "executors = 0", "executors must be a whole number, at least 1; found 0"),
        (LEAST + "executors = -1", "executors must be a whole number, at least 1; found -1"),
        (LEAST + "executors = true", "executors must be a whole number, at least 1; found True"),
        (LEAST + "executors = 1.5", "executors must be a whole number, at least 1; found 1.5"),
        (LEAST + 'cores = "2"', "cores must be a whole number, at least 1; found '2'"),
        (LEAST + "slots = 0", "slots must be a whole number, at least 1; found 0"),
        (LEAST + "splitters = 513", "splitters must be a whole number, at least 1 and at most 512; found 513"),
        (LEAST + "physical_window = 16", "physical_window must be text, such as '16 MiB'; found 16"),
        (LEAST + 'physical_window = "16"', "physical_window must be bytes, from 1 KiB to 1 GiB"),
        (LEAST + "memory = 1", "memory must be text, such as '1g' or '800m'; found 1"),
        (LEAST + 'memory = "1"', "memory must be a whole number and a unit, such as '1g' or '800m'; found '1'"),
        (LEAST + 'memory = "1.5g"', "memory must be a whole number and a unit"),
        (LEAST + 'memory = "one gig"', "found 'one gig'"),
        (LEAST + 'memory = "449m"', "memory must be at least 450m, which Spark's executors need; found '449m'"),
        ('state = "s"\nmaster = "local-cluster[2,1,100]"', "memory must be at least 450m"),
        (LEAST + 'ship = "yes"', "ship must be true or false; found 'yes'"),
        (LEAST + "ship = 1", "ship must be true or false; found 1"),
        (LEAST + 'python = " "', "python must be text, the path of a Python; found ' '"),
        (LEAST + 'epoch = "soon"', "epoch is not a duration; found 'soon'"),
        (LEAST + "epoch = 1", "epoch must be a duration as text, such as '1 second'; found 1"),
        (LEAST + 'patience = "0 seconds"', "patience must be more than zero"),
        (LEAST + 'plan = "absent.json"', "absent.json' does not exist; create one with headrace explain --format json"),
        (LEAST + 'packages = "x.py"', "packages must be a list of paths"),
        (LEAST + "packages = [1]", "packages must be a list of paths, such as ['helpers.py']; found 1 in it"),
        (LEAST + 'packages = ["absent.py"]', "absent.py' does not exist"),
        (LEAST + 'packages = ["cluster.toml"]', "is neither a folder nor a .py nor a .zip file"),
        (LEAST + 'packages = ["no.zip"]', "no.zip' is not a zip file"),
        (LEAST + 'packages = ["empty"]', "empty' is not a Python package"),
        (LEAST + 'packages = ["twice.py", "more/twice.py"]', "packages contain 'twice' twice"),
        (LEAST + 'packages = ["headrace.py"]', "packages contain 'headrace' twice"),
        (
            LEAST + '[spark]\nexecutor.memory = "2g"',
            "spark.executor.memory must not be set in [spark]; use the key memory instead",
        ),
        (
            LEAST + '[spark]\n"spark.master" = "x"',
            "spark.master must not be set in [spark]; use the key master instead",
        ),
        (LEAST + "[spark]\nx = [1]", "spark.x must be text, a number, true or false; found [1]"),
        ('master = "spark://h:1"\nstate = "hdfs://h/x"', "state must be a folder of a file system"),
        (LEAST + "executors", "is not TOML: "),
        (LEAST + LEAST, "is not TOML: "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "no.zip").write_text("no zip")
    (tmp_path / "empty").mkdir()
    (tmp_path / "more").mkdir()
    for name in ("twice.py", "more/twice.py", "headrace.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(hr.DeploymentError) as found:
        read_text(tmp_path, text)
    assert message in str(found.value)
    assert "cluster.toml" in str(found.value)
    assert isinstance(found.value, ValueError)


@pytest.mark.parametrize(
    "master",
    [
        "http://host:8080",
        "mesos://host:5050",
        "sc://host",
        "host:7077",
        "local[0]",
        "local[two]",
        "local-cluster[2,1]",
        "local-cluster[0,1,1024]",
        "spark://",
        "spark://host",
        "spark://host:0",
        "spark://host:99999",
        "spark://host:7077,",
        "spark://host:7077/",
        "k8s://",
        "yarn-client",
    ],
)
def test_masters_that_nobody_understands(tmp_path: Path, master: str) -> None:
    with pytest.raises(hr.DeploymentError, match=r"the master .*expected|must be spark://HOST:PORT") as found:
        read_text(tmp_path, f'master = "{master}"\nstate = "s"')
    assert repr(master) in str(found.value)
    with pytest.raises(hr.DeploymentError, match="the master"):
        check_master(master)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(hr.DeploymentError, match=r"absent.toml' cannot be read: No such file or directory"):
        read_descriptor(tmp_path / "absent.toml")
    with pytest.raises(hr.DeploymentError, match="cannot be read: Is a directory"):
        read_descriptor(tmp_path)
    (tmp_path / "x.toml").write_bytes(b'master = "\xff"')
    with pytest.raises(hr.DeploymentError, match="is not TOML: 'utf-8' codec"):
        read_descriptor(tmp_path / "x.toml")


# --- masters that do not answer ------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        yield server.getsockname()[1]


@contextlib.contextmanager
def closed() -> Iterator[int]:
    """A port that is ours, so nobody else listens there, and refuses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextlib.contextmanager
def never_accepting() -> Iterator[int]:
    """A black hole: the queue of connections is full, so the next one gets no answer at all."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def refusal(master: str, timeout: float = PATIENCE) -> str:
    """What is said; who would wait for the timeout, though nothing can come, hangs."""
    with pytest.raises(hr.EngineError) as found:
        check_master(master, timeout)
    return str(found.value)


def test_a_master_that_answers() -> None:
    with listening() as port:
        check_master(f"spark://127.0.0.1:{port}")


def test_a_port_where_nobody_listens() -> None:
    with closed() as port:
        said = refusal(f"spark://127.0.0.1:{port}")
    assert f"no Spark master answers at spark://127.0.0.1:{port} (127.0.0.1:{port}: connection refused)" in said
    assert "is it up" in said


def test_a_master_that_never_accepts() -> None:
    with never_accepting() as port:
        begun = time.monotonic()
        said = refusal(f"spark://127.0.0.1:{port}", timeout=0.5)
        assert time.monotonic() - begun > 0.4
    assert "no answer within 0.5 seconds" in said


def test_a_host_that_nobody_knows() -> None:
    said = refusal("spark://no-such-host.invalid:7077", timeout=5.0)
    assert "unknown host" in said or "no answer" in said  # a resolver may be slow to say so


def test_a_name_that_takes_forever_to_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def look_up(*_: Any) -> None:
        over.wait(PATIENCE)
        raise OSError("too late to matter")

    monkeypatch.setattr(socket, "create_connection", look_up)
    said = refusal("spark://slow:7077", timeout=0.2)
    assert not over.is_set()  # nobody waited for it
    over.set()
    assert "slow:7077: no answer within 0.2 seconds" in said


def test_one_of_several_masters_is_enough() -> None:
    with closed() as first, never_accepting() as second, listening() as third:
        hosts = [f"127.0.0.1:{port}" for port in (first, second, third)]
        check_master("spark://" + ",".join(hosts), timeout=PATIENCE)  # nobody waits for the second
        said = refusal("spark://" + ",".join(hosts[:2]), timeout=0.5)
    assert f"{hosts[0]}: connection refused; {hosts[1]}: no answer within 0.5 seconds" in said


@pytest.mark.parametrize("command", ["deploy", "run"])
def test_no_jvm_starts_for_a_master_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("headrace.spark.session.signal_safe_session", lambda *a, **k: started.append(a))
    (tmp_path / "q.py").write_text("def query(spark): ...")
    with closed() as port:
        master = f"spark://127.0.0.1:{port}"
        path = written(tmp_path, f'master = "{master}"\nstate = "state"')
        more = ["--to", str(path)] if command == "deploy" else ["--master", master]
        found = CliRunner().invoke(cli.app, [command, str(tmp_path / "q.py"), *more])
    assert found.exit_code == 1
    assert found.stderr.startswith(f"error: no Spark master answers at {master}")
    assert not started
    assert not (tmp_path / "state").exists()


def test_spark_that_finds_no_master_behind_the_port(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "ERROR StandaloneSchedulerBackend: Application has been killed. Reason: All masters are unresponsive!"
    )
    said = quiet_session._reason(RuntimeError("x"), log, "spark://h:1")
    assert "the address answers, but not as a master of this Spark" in said and "Java" not in said


# --- what is shipped -----------------------------------------------------------------------------------------------


def test_headrace_is_importable_from_what_is_shipped(tmp_path: Path) -> None:
    """All of it, in a Python that has it from nowhere else."""
    (found,) = read_text(tmp_path, LEAST).pack(tmp_path)
    assert found.suffix == ".zip" and found.stat().st_size < 1 << 20
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in zipfile.ZipFile(found).namelist()
        if name.endswith(".py") and "/bench/" not in name and not name.endswith("__main__.py")
    )
    assert "headrace.spark.job" in modules and "headrace.kernels.joins.pair_loop" in modules
    code = f"""
import sys
sys.path[:0] = [{str(found)!r}, *{[p for p in sys.path if "site-packages" in p]!r}]
import importlib
for name in {modules!r}:
    assert importlib.import_module(name).__file__.startswith({str(found)!r}), name
print("all from the zip")
"""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "all from the zip\n", done.stderr


def test_packages_are_shipped_as_they_are_or_zipped(tmp_path: Path) -> None:
    (tmp_path / "rules" / "__pycache__").mkdir(parents=True)
    (tmp_path / "rules" / "__pycache__" / "x.pyc").write_bytes(b"")
    (tmp_path / "rules" / "__init__.py").write_text("LIMIT = 7")
    (tmp_path / "rules" / "table.csv").write_text("1,2")
    (tmp_path / "helpers.py").write_text("")
    out = tmp_path / "out"
    out.mkdir()
    found = read_text(tmp_path, LEAST + 'ship = false\npackages = ["rules", "helpers.py"]').pack(out)
    assert found == [out / "rules.zip", tmp_path / "helpers.py"]
    assert sorted(zipfile.ZipFile(found[0]).namelist()) == ["rules/__init__.py", "rules/table.csv"]


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_query_file_may_import_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a summary comes before anything is started."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shipped_rules.py").write_text("LIMIT = 7")
    (tmp_path / "q.py").write_text("import shipped_rules\ndef query(spark): ...")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with closed() as port:
        master = f"spark://127.0.0.1:{port}"
        text = f'master = "{master}"\nstate = "state"\nexecutors = 2\npackages = ["lib/shipped_rules.py"]'
        found = CliRunner().invoke(cli.app, ["deploy", str(tmp_path / "q.py"), "--to", str(written(tmp_path, text))])
    assert f"deploying q.py to {master}: 2 executors with 1 core and 1g each\n  2 slots" in found.stdout
    assert f"state in {tmp_path / 'state'}" in found.stdout
    assert f"shipped: headrace {hr.__version__}, shipped_rules.py" in found.stdout
    assert "no Spark master answers" in found.stderr


@pytest.mark.parametrize("host", ["my..host", "x" * 70])
def test_a_name_that_no_host_can_have_is_an_unknown_host(host: str) -> None:
    assert deployment._knock((host, 7077), 1.0) == "unknown host"
