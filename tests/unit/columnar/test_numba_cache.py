"""Loops are compiled once, and anew as soon as something that was compiled into them is another."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numba
import pytest

from headrace.columnar import numba_cache
from headrace.columnar.numba_cache import compile_inner
from headrace.support import ownership
from tests.another_user import AnotherUser, reachable_folder

LIBRARY = """
from headrace.columnar.numba_cache import compile_inner
FACTOR = {factor}

@compile_inner
def step(value):
    return value + {step}
"""
LOOP = """
import sys
from headrace.columnar.numba_cache import compile_cached, is_cached
from library import FACTOR, step

@compile_cached
def loop(value):
    return FACTOR * step(value)

before = is_cached(loop)
print(loop(1), before, is_cached(loop))
"""


def told(folder: Path) -> str:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    found = subprocess.run([sys.executable, "loop.py"], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return found.stdout.strip()


@pytest.mark.thorough
def test_a_loop_is_kept_until_what_it_is_made_of_changes(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=1))
    assert told(tmp_path) == "2 False True"
    assert told(tmp_path) == "2 True True"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=1, step=10))
    assert told(tmp_path) == "11 False True", "a loop of another file that it calls"
    (tmp_path / "library.py").write_text(LIBRARY.format(factor=3, step=10))
    assert told(tmp_path) == "33 False True", "a constant of another file"


# --- loops that were made as text ------------------------------------------------------------------------------------

TEXT = "def loop(value):\n    return {factor} * step(value)\n"


@compile_inner
def step(value):
    return value + 1


@pytest.fixture
def kept(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setattr(numba_cache, "cache_folder", lambda: tmp_path)
    return tmp_path


def hits(text: str, uses: str = "") -> int:
    loop = numba_cache.compile_text(text, "loop", uses, {"step": step})
    assert loop(1) == 2 * int(text.split("return ")[1].split()[0])
    return sum(loop.stats.cache_hits.values())


def test_a_text_is_kept_by_its_content(kept, monkeypatch):
    text = TEXT.format(factor=3)
    assert [hits(text), hits(text)] == [0, 1]
    assert hits(TEXT.format(factor=4)) == hits(text, "other meanings of names") == 0
    assert len(list(kept.iterdir())) == 3, "one file each, nothing beside"
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert hits(text) == 0


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: b"", lambda d: d[:99] + bytes([d[99] ^ 1]) + d[100:]])
def test_a_damaged_file_is_made_again(kept, damage, caplog):
    text = TEXT.format(factor=5)
    hits(text)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert [hits(text), hits(text)] == [0, 1]
    assert "is not used" in caplog.text


@pytest.mark.thorough
def test_other_processes_find_it(tmp_path):
    program = (
        "from headrace.columnar.numba_cache import compile_text; loop = compile_text('def loop(v): return v + 1', 'loop', '', {});"
        "print(loop(1), sum(loop.stats.cache_hits.values()))"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = partial(subprocess.Popen, [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    at_once = [run(), run()]
    assert {each.communicate()[0].strip() for each in at_once} <= {"2 0", "2 1"}
    assert run().communicate()[0].strip() == "2 1"


def test_without_a_folder_it_is_compiled_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(numba_cache, "cache_folder", lambda: None)
    assert hits(TEXT.format(factor=6)) == 0
    assert hits(TEXT.format(factor=6)) == 0


# --- what others can write is not run --------------------------------------------------------------------------------


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that a user chose for compiled code, before it was first used."""
    monkeypatch.setattr(numba_cache.config, "CACHE_DIR", str(tmp_path / "chosen"))
    numba_cache.cache_folder.cache_clear()
    yield tmp_path / "chosen"
    numba_cache.cache_folder.cache_clear()


@pytest.mark.parametrize("others", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("whose", ["the folder", "its parent", "one further up"])
def test_a_folder_that_others_may_write_is_not_used(chosen: Path, others: int, whose: str, caplog) -> None:
    folder = chosen / "headrace"
    folder.mkdir(parents=True)
    opened = {"the folder": folder, "its parent": chosen, "one further up": chosen.parent}[whose]
    opened.chmod(others)
    is_sticky = bool(others & stat.S_ISVTX) and opened != folder  # in it each can rename only what is his own
    assert numba_cache.cache_folder() == (folder if is_sticky else None)
    assert is_sticky or repr(str(opened)) in caplog.text
    numba_cache.cache_folder()
    assert caplog.text.count("could change") == (not is_sticky), "it is said once"


def test_under_any_umask_the_folder_is_closed_to_others(chosen: Path) -> None:
    before = os.umask(0)
    try:
        assert numba_cache.cache_folder() == chosen / "headrace"
        hits(TEXT.format(factor=8))
    finally:
        os.umask(before)
    modes = {path.relative_to(chosen.parent): stat.S_IMODE(path.stat().st_mode) for path in chosen.rglob("*")}
    assert set(modes.values()) == {0o700, 0o600}


@pytest.mark.parametrize("ours", [True, False])
def test_a_link_is_followed_if_no_other_user_can_change_it(chosen: Path, ours: bool, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755 if ours else 0o777)
    (tmp_path / "shared" / "link").symlink_to(tmp_path / "elsewhere")
    chosen.symlink_to("shared/link")
    assert numba_cache.cache_folder() == (chosen / "headrace" if ours else None)


def test_links_that_lead_to_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert ownership.exposed_path(tmp_path / "one") is not None


@pytest.mark.parametrize("harm", ["writable", "a link", "a pipe"])
def test_a_file_that_others_may_have_written_is_not_used(kept: Path, harm: str, tmp_path: Path, caplog) -> None:
    text = TEXT.format(factor=9)
    hits(text)
    (file,) = kept.iterdir()
    if harm == "writable":
        file.chmod(0o666)
    else:
        whole = file.rename(tmp_path.parent / f"{tmp_path.name}.loop")
        file.symlink_to(whole) if harm == "a link" else os.mkfifo(file)
    assert [hits(text), hits(text)] == [0, 1]
    assert "is not used" in caplog.text and stat.S_ISREG(file.lstat().st_mode)


# a fixed loop and one that was made as text
ATTACKED = """
import numpy as np
from headrace.columnar import numba_cache, numba_loops
both = np.empty(2, np.int64)
numba_loops.merge_sorted(np.array([1]), np.array([2]), both)
text = numba_cache.compile_text('def loop(v): return v + 1', 'loop', '', {})
print(both.tolist(), text(1), sum(sum(loop.stats.cache_hits.values()) for loop in (numba_loops.merge_sorted, text)))
"""
# in the place of every file, also of those that numba would look for: an index, which says that the file behind it is up to date
PLANT = """
class Planted:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[1]}",)

code = pickle.dumps(Planted())
for folder, _, names in os.walk(sys.argv[2]):
    for name in names:
        path = os.path.join(folder, name)
        try:
            if not name.endswith(".nbi"):
                os.rename(path, path + ".aside")
                with open(path, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code if name.endswith(".loop") else code)
            print("planted", path)
        except OSError:
            pass
"""


@pytest.mark.thorough
def test_code_that_another_user_plants_is_not_run(another_user: AnotherUser) -> None:
    """In a folder that everybody can write, under a careless umask."""
    with reachable_folder() as folder:
        cache, theirs = folder / "cache", folder / "theirs"
        for each in (cache, theirs):
            each.mkdir()
            each.chmod(0o777)
        env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
        options = {"env": env, "stdout": subprocess.PIPE, "text": True, "check": True, "umask": 0}
        run = partial(subprocess.run, [sys.executable, "-c", ATTACKED], **options)
        assert run().stdout == "[1, 2] 2 0\n"
        another_user.run(PLANT, theirs / "harm", cache)
        assert run().stdout == "[1, 2] 2 0\n"
        assert not (theirs / "harm").exists(), "code of another user was run"
