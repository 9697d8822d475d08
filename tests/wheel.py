"""Check that the installed wheel works without the checkout: `make wheel` runs this in an empty environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headrace as hr

PREFIX = Path(sys.prefix).resolve()


def main() -> None:
    package = Path(hr.__file__).resolve()
    assert package.is_relative_to(PREFIX), f"headrace was imported from {package}, not from the wheel in {PREFIX}"
    found = subprocess.run([PREFIX / "bin" / "headrace", "--help"], check=True, capture_output=True, text=True)
    assert "run" in found.stdout, found.stdout
    spark = hr.session(slots=2)
    try:
        calls = hr.stream(spark.sql("select timestamp'2026-01-01 00:00:00' ts, 1 k"), time="ts", name="calls")
        pairs = calls.join(calls, on="l.k <= r.k", within="1 second")
        assert pairs.collect().num_rows == 1
    finally:
        spark.stop()
    print(f"the wheel of headrace {hr.__version__} works")


if __name__ == "__main__":
    main()
