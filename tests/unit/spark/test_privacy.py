"""What Spark is told so that other users of a machine cannot reach its files, ports and sockets; and what is refused."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.columnar import scratch
from headrace.spark import compat, privacy

SOCKETS, FOLDER = compat.SOCKETS, compat.SOCKET_FOLDER

pytestmark = pytest.mark.skipif(not compat.has_sockets(), reason="before Spark 4.1 there are no sockets")


@pytest.fixture(autouse=True)
def careless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is made is open to everybody, unless it is closed."""
    for name in (*privacy.ADDRESS_VARIABLES, privacy.FILES_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where scratch files go: a folder with a short name."""
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    monkeypatch.setenv(scratch.SCRATCH_VARIABLE, str(folder))
    monkeypatch.setattr(scratch, "_own", {})
    yield folder
    scratch._leave()
    shutil.rmtree(folder)


def mode(folder: str) -> int:
    return stat.S_IMODE(Path(folder).stat().st_mode)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_a_local_session_keeps_to_itself(place: Path, master: str) -> None:
    found = privacy.private_settings(master, {})
    assert found[SOCKETS] == "true" and mode(found[FOLDER]) == 0o700
    assert mode(found["spark.local.dir"]) == 0o700
    if not master.startswith("local-cluster"):
        assert found["spark.authenticate"] == "true"
        assert {found[name] for name in privacy.ADDRESSES} == {"127.0.0.1"}


def test_what_is_asked_for_is_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"spark.driver.host": "here", "spark.authenticate": "false", privacy.FILES: "/data"}
    found = {**asked, **privacy.private_settings("local[2]", asked)}
    assert asked.items() <= found.items() and "spark.driver.bindAddress" not in found
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert "spark.driver.host" not in privacy.private_settings("local[2]", {})


@pytest.mark.parametrize("before", [None, "-Da=b"])
def test_a_virtual_machine_has_its_temporary_files_in_a_folder_of_ours(place: Path, before, monkeypatch) -> None:
    monkeypatch.delenv(privacy.JAVA_VARIABLE, raising=False)
    if before:
        monkeypatch.setenv(privacy.JAVA_VARIABLE, before)
    with privacy.private_temporary_folder():
        found = os.environ[privacy.JAVA_VARIABLE]
    folder = privacy.private_settings("local[2]", {})["spark.local.dir"]
    assert found == " ".join(filter(None, [f'"-Djava.io.tmpdir={folder}"', before]))
    assert os.environ.get(privacy.JAVA_VARIABLE) == before


def test_files_in_a_folder_that_others_can_read_are_told(place: Path, tmp_path: Path, monkeypatch, caplog) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv(privacy.FILES_VARIABLE, str(tmp_path))
    privacy.private_settings("local[2]", {})
    assert caplog.text == ""
    tmp_path.chmod(0o755)
    assert privacy.FILES not in privacy.private_settings("local[2]", {})
    assert f"chmod 700 {tmp_path}" in caplog.text


def test_the_longest_folder_has_room_for_a_socket(tmp_path: Path) -> None:
    folder = Path("/tmp", "x" * (privacy.MOST_PATH_BYTES - 5))
    folder.mkdir()
    try:
        with socket.socket(socket.AF_UNIX) as found:
            found.bind(f"{folder}/.{uuid.uuid4()}.sock")
    finally:
        shutil.rmtree(folder)


def test_a_place_with_a_long_name_has_its_sockets_elsewhere(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = place / ("x" * 60)
    longer.mkdir(mode=0o700)
    monkeypatch.setenv(scratch.SCRATCH_VARIABLE, str(longer))
    found = privacy.private_settings("local[2]", {})
    assert Path(found[FOLDER]).parent == privacy.SHORT_FOLDER and mode(found[FOLDER]) == 0o700
    assert Path(found["spark.local.dir"]).is_relative_to(longer)


def test_where_every_folder_can_be_replaced_there_are_no_sockets(place: Path, monkeypatch, caplog) -> None:
    place.chmod(0o777)
    monkeypatch.setattr(privacy, "SHORT_FOLDER", place)
    assert privacy.private_settings("local[2]", {})[SOCKETS] == "false"
    assert "over TCP" in caplog.text
    with pytest.raises(hr.EngineError, match="no private folder"):
        privacy.private_settings("local[2]", {SOCKETS: "true"})


def test_on_a_cluster_there_are_sockets_where_the_user_has_a_folder_for_them(tmp_path: Path) -> None:
    """A folder of the driver is not there on other machines."""
    master = "spark://somewhere:7077"
    assert privacy.private_settings(master, {}) == {SOCKETS: "false"}
    assert privacy.private_settings(master, {SOCKETS: "false"}) == {}
    with pytest.raises(hr.EngineError, match=r"set spark\.python\.unix\.domain\.socket\.dir"):
        privacy.private_settings(master, {SOCKETS: "true"})
    tmp_path.chmod(0o700)
    assert privacy.private_settings(master, {FOLDER: str(tmp_path)}) == {SOCKETS: "true"}


@pytest.mark.parametrize("master", ["local[2]", "spark://somewhere:7077"])
def test_a_folder_that_others_can_enter_is_refused(place: Path, tmp_path: Path, master: str) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(hr.EngineError, match=r"other users of this machine can connect to them \(the umask is 000\)"):
        privacy.private_settings(master, {FOLDER: str(tmp_path)})
    with pytest.raises(hr.EngineError, match="No such file"):
        privacy.private_settings(master, {FOLDER: str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("umask", "folder", "refused"),
    [(0o022, 0o1777, False), (0o022, 0o777, True), (0o002, 0o1777, True), (0, 0o1777, True), (0, 0o700, False)],
)
def test_sockets_of_a_session_that_the_user_made(
    tmp_path: Path, umask: int, folder: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the driver and in the workers, which have the same folder on another machine."""
    tmp_path.chmod(folder)
    os.umask(umask)
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "True")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", str(tmp_path))
    privacy.check_worker.cache_clear()
    for check in (privacy.check_worker, lambda: privacy.check_driver("true", str(tmp_path))):
        if refused:
            with pytest.raises(hr.EngineError, match="Spark does not check who connects; create the session with"):
                check()
        else:
            check()
    privacy.check_driver("false", str(tmp_path))
