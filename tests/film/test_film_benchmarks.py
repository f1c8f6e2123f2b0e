"""The benchmarks of FILM in their smallest form: they run, count and fit; their numbers are no matter here."""

import io
import json
import subprocess
import sys

import cv2
import numpy as np
import pytest
from toy import CONFIG

from benchmarks import film as film_benchmark
from benchmarks import film_memory, photos
from benchmarks.measuring import RowLog
from film import compiled
from film.config import FilmConfig
from film.ops import row_tiling
from film.planning import FRAME, MATCHING_BYTES, encoded_bytes, held_bytes, parameters


@pytest.fixture
def small_process(monkeypatch):
    """`setup` changes the allocator of the process; a network that compiles in a moment."""
    monkeypatch.setattr("common.runtime.setup", lambda **_: None)
    monkeypatch.setattr(FilmConfig, "toy", classmethod(lambda cls: CONFIG), raising=False)


@pytest.mark.parametrize("preset", [True, False])
def test_a_case_answers_lines(preset, small_process, tmp_path, monkeypatch, capsys):
    """Of a preset, and of weights, which see photos."""
    film_memory.save_weights("toy", str(tmp_path / "toy.safetensors"))
    for module, name in ((row_tiling, "FEWEST"), *((compiled, name) for name in ("_encode", "_coarse", "_finish"))):
        monkeypatch.setattr(module, name, getattr(module, name))  # put back at the end
    monkeypatch.setattr(compiled, "_flow", compiled._flow)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    film_benchmark.serve_case("small-plain" if preset else str(tmp_path / "toy.safetensors"), 24, 16, 2, False)
    first, *runs, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["seconds"] > 0 and len(runs) == 2 and all(run["cpu"] > 0 for run in runs)
    assert report["flops"] > 3 * 24 * 16 and report["peak"] > 0 and not report["windows"]


def test_the_peak_of_a_clip(small_process, tmp_path):
    film_memory.save_weights("toy", str(tmp_path / "toy.safetensors"))
    assert film_memory.make_clip(str(tmp_path / "toy.safetensors"), 24, 16, kept=0) > 50e6


def test_the_fit_is_never_below_a_peak_and_finds_what_made_them():
    truth, rows = (0.5e9, 6.0, 1.5), []
    for config in (FilmConfig.paper(), FilmConfig.small()):
        for pixels, kept in ((65536, 0), (921600, 2), (2073600, 1)):
            known = held_bytes(config, kept) + 3 * FRAME + MATCHING_BYTES * config.matching
            peak = truth[0] + truth[1] * parameters(config) + pixels * (truth[2] * encoded_bytes(config)[0] + known)
            rows.append((config, pixels, kept, peak))
    np.testing.assert_allclose(film_memory.fit(rows), truth, rtol=1e-3)
    higher = [(*row[:3], row[3] + 1e8 * (number == 0)) for number, row in enumerate(rows)]
    base, per_parameter, share = film_memory.fit(higher)
    for config, pixels, kept, peak in higher:
        finest = encoded_bytes(config)[0]
        known = pixels * (held_bytes(config, kept) + 3 * FRAME + MATCHING_BYTES * config.matching)
        assert base + per_parameter * parameters(config) + pixels * share * finest + known > peak - 1


def test_the_peak_of_a_process_is_its_own():
    """Of a process that a small one starts, with and without a limit."""
    program = """if True:
        import json, subprocess, sys
        from benchmarks.film_limits import measured
        command = [sys.executable, "-c", "x = bytearray(4 * 10**8)"]
        print(json.dumps(measured(command)))
        try:
            measured(command, 2 * 10**8)
        except subprocess.CalledProcessError as error:
            print(error.returncode, "jax" in sys.modules)
    """
    found, limited = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.splitlines()
    assert 4e8 < json.loads(found)["peak"] < 4.5e8 and limited == "1 False"


def test_a_known_shake_and_exposure_are_found():
    noise = np.random.default_rng(0).random((40, 60, 3)).astype(np.float32)
    photo = cv2.resize(noise, (480, 320), interpolation=cv2.INTER_CUBIC).clip(0.05, 0.8)
    pixels, stops, seconds = photos.measure(photo, 0.0, seed=0)
    assert pixels < 2 and stops < 0.1 and seconds > 0


def test_rows_that_a_file_holds_are_not_measured_again_with_the_same_options(tmp_path, monkeypatch, capsys):
    measured, rows = [], tmp_path / "rows.jsonl"

    def cells(options, *key):
        measured.append((*key, options.untiled))
        return [*key, f"{options.untiled}"]

    monkeypatch.setattr(film_benchmark, "cells", cells)
    for untiled in (True, False, True):
        options = film_benchmark.Options(("small",), ("64x64",), ("pair",), untiled=untiled, rows=rows)
        film_benchmark.main(options)
        assert f"| pair | {untiled} |" in capsys.readouterr().out
    assert measured == [("small", "64x64", "pair", True), ("small", "64x64", "pair", False)]
    old = {"model": "paper", "size": "64x64", "kind": "pair", "reference": False, "cells": ["of an old file"]}
    rows.write_text(json.dumps(old) + "\n")
    film_benchmark.main(film_benchmark.Options(("paper",), ("64x64",), ("pair",), rows=rows))
    assert "of an old file" in capsys.readouterr().out
    assert RowLog(None).row({"a": 1}, lambda: {"b": 2}) == {"a": 1, "b": 2}
