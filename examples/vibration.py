"""Spectra of many sensors: `headrace run examples/vibration.py --out spectra/`.

The query reads samples (ts, sensor, value) from the folder `samples/` (or $SAMPLES). `python examples/inputs.py`
generates some.

A window has 256 samples of a sensor, and a new window begins every 128 samples. NumPy computes all windows of a sensor
at once. The state table keeps the samples that later windows need.
"""

import os

import numpy as np
import pyarrow as pa

import headrace as hr

TS = pa.timestamp("us", "UTC")


class Spectrum(hr.Processor):
    """The strongest frequency of each window, its power, and the total power. `ts` is the time of the last sample."""

    schema = pa.schema(
        [("ts", TS), ("sensor", pa.int64()), ("hz", pa.float64()), ("peak", pa.float64()), ("power", pa.float64())]
    )
    tables = {
        "recent": hr.StateTable(
            key=["sensor"], columns=pa.schema([("sensor", pa.int64()), ("samples", pa.list_(pa.float64()))])
        )
    }

    def __init__(self, size=256, hop=128, rate=100.0):
        self.size, self.hop, self.rate = size, hop, rate  # samples, samples, samples per second

    def open(self, substream, substreams):
        """Compute values that depend only on the settings, and are therefore the same in every process."""
        self.taper = np.hanning(self.size)
        self.frequencies = np.fft.rfftfreq(self.size, 1 / self.rate)

    def process(self, samples, state):
        samples = samples.sort_by("sensor")  # stable: the samples of a sensor stay in sequence
        sensors, starts = np.unique(samples["sensor"].to_numpy(), return_index=True)
        before = state["recent"].get(pa.table({"sensor": sensors}))["samples"].to_pylist()
        values, times = samples["value"].to_numpy(), samples["ts"].to_numpy()

        results, recent = [], []
        for sensor, old, start, stop in zip(sensors, before, starts, [*starts[1:], len(values)], strict=True):
            signal = np.concatenate([old or [], values[start:stop]])
            count = max(0, (len(signal) - self.size) // self.hop + 1)
            if count:
                # the last sample of a window is always in this chunk, so its time is in `times`
                ends = np.arange(count) * self.hop + self.size - 1 - len(old or [])
                results.append(self.spectra(signal, sensor, times[start:stop][ends]))
            recent.append(signal[count * self.hop :])
        state["recent"].put(pa.table({"sensor": sensors, "samples": pa.array(recent, pa.list_(pa.float64()))}))
        return pa.concat_tables(results) if results else None

    def spectra(self, signal, sensor, times):
        windows = np.lib.stride_tricks.sliding_window_view(signal, self.size)[:: self.hop]
        windows = (windows - windows.mean(axis=1, keepdims=True)) * self.taper
        power = np.abs(np.fft.rfft(windows)) ** 2
        strongest = power.argmax(axis=1)
        columns = {
            "ts": pa.array(times).cast(TS),
            "sensor": np.full(len(times), sensor),
            "hz": self.frequencies[strongest],
            "peak": power.max(axis=1),
            "power": power.sum(axis=1),
        }
        return pa.table(columns, schema=self.schema)


def build(samples):
    return samples.split(64, by=["sensor"]).filter("sensor IS NOT NULL AND isfinite(value)").apply(Spectrum())


def query(spark):
    return build(hr.files(spark, os.environ.get("SAMPLES", "samples"), time="ts", lateness="1 second", name="samples"))
