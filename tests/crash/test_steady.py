"""Two thousand epochs of processors with tables, on real Spark, and nothing grows: memory, open files, caches, disk."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from tests.mapping import deleted_blocks

from . import watching
from .test_soak import Program, Watched, uses

EPOCHS = int(os.environ.get("HEADRACE_SOAK_EPOCHS", "2000"))
LOOKS = 80
AHEAD = 4  # files that wait
KEYS, PER_FILE = 10_000, 300
MB = 1 << 20

# what may be more in the last quarter than in the second, for what comes and goes: a twentieth, and this much
SHARE = 0.05
MORE = {
    "driver, MB": 4.0,
    "heap, MB": 8.0,  # of the virtual machine, after a collection
    "workers, MB": 8.0,
    "processes": 1.0,  # one that was idle goes and comes back
    "files of the driver": 4.0,
    "files of the machine": 16.0,  # the virtual one
    "files of workers": 8.0,
    "mappings of workers": 32.0,
    "deleted blocks mapped by the driver": 0.5,
    "cache, MB": 0.2,
    "caches": 0.5,
    "checkpoint, MB": 0.25,  # names of files that were taken are kept
    "blocks": 8.0,
    "shuffled, MB": 4.0,
}


def size(folder: Path) -> float:
    """What the files there take on the disk, in MB; some go while we look."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.lstat().st_blocks * 512
    return found / MB


def memory(processes: Iterable[psutil.Process]) -> float:
    """In MB; what several share counts once."""
    return sum(process.memory_full_info().pss for process in processes) / MB


def mappings(process: psutil.Process) -> int:
    return len(Path(f"/proc/{process.pid}/maps").read_text().splitlines())


def look(driver: psutil.Process, folder: Path) -> dict[str, float]:
    children = driver.children(recursive=True)
    machine = [process for process in children if process.name() == "java"]
    workers = [process for process in children if process.name() != "java"]
    (cache,) = (folder / "cache").glob("headrace-cache-*")
    return {
        "driver, MB": memory([driver]),
        "heap, MB": float((folder / "heap.txt").read_text()),
        "machine, MB": memory(machine),  # depends on when it collects: told, not demanded
        "workers, MB": memory(workers),
        "processes": len(children),
        "files of the driver": driver.num_fds(),
        "files of the machine": sum(process.num_fds() for process in machine),
        "files of workers": sum(process.num_fds() for process in workers),
        "mappings of workers": sum(map(mappings, workers)),
        "deleted blocks mapped by the driver": len(deleted_blocks(driver.pid, folder)),
        "cache, MB": size(cache),
        "caches": sum("-" in path.name for path in cache.iterdir()),
        "checkpoint, MB": size(folder / "ckpt"),
        "blocks": len(list((folder / "ckpt" / "state" / "blocks").iterdir())),
        "shuffled, MB": size(folder / "spark"),
    }


def run(running: Watched, epochs: int) -> tuple[list[dict[str, float]], float]:
    """Epoch by epoch, a file for each; what was seen as it went, and how long it took."""
    program, looks, done = Program(running.folder, 2, "steady", 10**9), list[dict[str, float]](), -1
    try:
        begun = time.monotonic()
        while done < epochs - 1:
            done = int(program.progress(running.folder).split()[1])
            running.feed(max(0, done + 1 + AHEAD - running.files))
            if done >= len(looks) * epochs / LOOKS and done > 2:
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # a worker that was idle goes
                    looks.append(look(psutil.Process(program.process.pid), running.folder))
        return looks, time.monotonic() - begun
    finally:
        program.kill()


def grown(looks: Sequence[Mapping[str, float]]) -> tuple[list[str], list[str]]:
    """(what there is in the second and in the last quarter, in words; what grew)."""
    words, more, quarter = [], [], len(looks) // 4
    for name in looks[0]:
        second, last = (
            statistics.median(each[name] for each in part)
            for part in (looks[quarter : 2 * quarter], looks[3 * quarter :])
        )
        words.append(f"{name}: {second:.1f}, then {last:.1f}")
        if name in MORE and last > (1 + SHARE) * second + MORE[name]:
            more.append(words[-1])
    return words, more


@pytest.mark.spark
@pytest.mark.long
def test_two_thousand_epochs_take_no_more_than_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, folder in (("HEADRACE_CACHE", "cache"), ("SPARK_LOCAL_DIRS", "spark"), (None, "in")):
        (tmp_path / folder).mkdir()
        if name:
            monkeypatch.setenv(name, str(tmp_path / folder))
    running = Watched(tmp_path, "steady", keys=KEYS, per_file=PER_FILE, rows=watching.steady_rows)
    running.feed(watching.LOADING)
    looks, took = run(running, EPOCHS)
    (tmp_path / "looks.json").write_text(json.dumps(looks))
    words, more = grown(looks)
    with capsys.disabled():
        print(f"\n{EPOCHS} epochs in {took:.0f} s, {len(looks)} looks; in the second quarter, and in the last:")
        print("\n".join(words))
    assert len(looks) > 0.9 * LOOKS
    assert not more
    built = [use for use in uses(tmp_path) if use.epoch > EPOCHS // 10 and (use.built or not use.found)]
    assert not built
    running.finish(2)
    assert running.verdict() == (0, 0, 0)


def test_what_grows_is_seen():
    """By a little in every look, and not at all."""
    still = [dict.fromkeys(MORE, 100.0) for _ in range(LOOKS)]
    assert grown(still)[1] == []
    for name, more in MORE.items():
        least = 2 * (100 * SHARE * 1.3 + more)  # from the first to the last: a half of it lies between the two quarters
        looks = [{**each, name: 100.0 + least * n / LOOKS} for n, each in enumerate(still)]
        assert len(grown(looks)[1]) == 1, name
