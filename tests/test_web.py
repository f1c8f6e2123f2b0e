"""The pages in a real browser: Debian's Chromium without a window, at the width of a desktop and of a phone."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from drawn_clips import encoded
from PIL import Image

from common.io.images import read_image, shrink, write_image

pytest.importorskip("gradio")
sync_api = pytest.importorskip("playwright.sync_api")

from common.web import LARGEST  # noqa: E402  # needs Gradio

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
LONG = 120_000  # milliseconds: what is computed for the first time is compiled first

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")]


@contextlib.contextmanager
def serving(temporary):
    """All pages in one; afterwards it must end by Ctrl-C, without a traceback, and leave no file."""
    flags = "--xla_backend_optimization_level=0"  # compiling is most of the time
    environment = os.environ | {"TMPDIR": str(temporary), "XLA_FLAGS": flags}
    command = [sys.executable, str(ROOT / "examples" / "web.py"), "--port", "0"]
    errors = temporary.parent / f"{temporary.name}-errors"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command, env=environment, cwd=temporary, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        yield re.findall(r"http://127\.0\.0\.1:\d+/", line)[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not list(temporary.iterdir())
    assert "Traceback" not in errors.read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("temporary")) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=SIZES)
def view(request, browser, server):
    page = browser.new_page(viewport=SIZES[request.param])
    page.goto(server)
    yield page
    page.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """The example pair, small, and its second photo a little larger."""
    folder = tmp_path_factory.mktemp("photos")
    for number in (0, 1):
        photo = read_image(ROOT / "examples" / f"cup_{number}.jpg")
        write_image(folder / f"cup_{number}.jpg", shrink(photo, 128))
    write_image(folder / "cup_1_large.jpg", shrink(photo, 144))
    return sorted(folder.iterdir())


def press(page, name):
    page.get_by_role("button", name=name, exact=True).locator("visible=true").click()


def drop(page, *paths):
    page.set_input_files("input[type=file] >> nth=0", [str(path) for path in paths])


@pytest.mark.parametrize("suffix", [".mp4", ".webp"])
def test_two_photos_become_a_clip_that_can_be_saved_and_leafed_through(view, photos, suffix):
    second = photos[1] if suffix == ".mp4" else photos[2]  # the larger one is cropped
    drop(view, photos[0], second)
    view.get_by_text(second.name).last.wait_for()
    view.get_by_label("New frames between two photos").first.fill("3")
    view.get_by_role("button", name="More").locator("visible=true").click()
    view.get_by_label(suffix, exact=True).check()
    press(view, "Make the clip")
    with view.expect_download(timeout=LONG) as download:
        view.get_by_role("button", name="Download the clip").click(timeout=LONG)
    if suffix == ".mp4":
        with av.open(download.value.path()) as clip:
            frames = [frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)]
        assert len(frames) == 5 and frames[0].shape == (96, 128, 3)
    else:
        with Image.open(download.value.path()) as clip:
            assert (clip.n_frames, clip.size) == (5, (128, 96))
    still = view.locator("#one-frame img")
    before = still.get_attribute("src") or ""
    view.get_by_label("number input for Frame", exact=True).fill("4")
    sync_api.expect(still).not_to_have_attribute("src", before)
    assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def movie(tmp_path_factory):
    """Eight frames of noise that moves to the left."""
    pixels = np.random.default_rng(0).integers(0, 255, (48, 80, 3), np.uint8)
    frames = [np.ascontiguousarray(pixels[:, left : left + 64]) for left in range(0, 16, 2)]
    return encoded(tmp_path_factory.mktemp("movie") / "pan.mp4", frames, Fraction(10))


def test_a_video_becomes_a_longer_one(view, movie):
    drop(view, movie)
    view.get_by_label("Times as many frames").first.wait_for(timeout=LONG)
    assert not view.get_by_label("New frames between two photos").first.is_visible()
    press(view, "Make the clip")
    with view.expect_download(timeout=LONG) as download:
        view.get_by_role("button", name="Download the clip").click(timeout=LONG)
    with av.open(download.value.path()) as clip:
        assert len(list(clip.decode(video=0))) == 16 and clip.streams.video[0].average_rate == 10
    assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_ctrl_c_ends_the_server_while_it_makes_a_clip(browser, movie, tmp_path):
    with serving(tmp_path) as address:
        page = browser.new_page()
        page.goto(address)
        drop(page, movie)
        page.get_by_label("number input for Times as many frames").first.fill("8")
        press(page, "Make the clip")
        page.get_by_text(re.compile(r"\d+/64")).wait_for(timeout=LONG)
    page.close()


def test_an_upload_beyond_the_limit_is_refused(view, tmp_path):
    path = tmp_path / "huge.mp4"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    drop(view, path)
    line = view.locator(".toast-body.error").first.inner_text(timeout=LONG)
    assert "200" in line
    view.get_by_role("button", name="Make the clip", exact=True).locator("visible=true").wait_for()


@pytest.mark.parametrize(
    ("name", "content"), [("notes.jpg", b"no picture"), ("clip.mp4", b"no video"), ("alone.png", None)]
)
def test_an_upload_that_does_not_do_is_refused_by_its_name(view, tmp_path, name, content):
    if content is None:
        shutil.copy(ROOT / "examples" / "apple.png", tmp_path / name)
    else:
        (tmp_path / name).write_bytes(content)
    drop(view, tmp_path / name)
    if content is None:
        view.get_by_text(name).last.wait_for()
        press(view, "Make the clip")
    line = view.locator(".toast-body.error").first.inner_text(timeout=LONG)
    assert name in line and "/" not in line.replace(name, "") and len(line.strip().splitlines()) <= 3


def test_cancel_stops_the_work_and_the_next_job_runs(view, photos):
    drop(view, *photos[:2])
    view.get_by_text("cup_1.jpg").last.wait_for()
    view.get_by_label("New frames between two photos").first.fill("63")
    press(view, "Make the clip")
    view.get_by_text(re.compile(r"\d+/65")).wait_for(timeout=LONG)
    press(view, "Cancel")
    view.get_by_text(re.compile(r"\d+/65")).wait_for(state="detached", timeout=LONG)
    assert not view.get_by_role("button", name="Download the clip").is_visible()
    view.get_by_label("New frames between two photos").first.fill("1")
    press(view, "Make the clip")
    view.get_by_role("button", name="Download the clip").wait_for(timeout=LONG)


def test_an_image_steers_and_methods_stand_below_each_other(view):
    view.get_by_role("tab", name="Control plugins").click()
    view.locator(".pixi-target canvas").first.wait_for(timeout=LONG)  # before, Gradio drops an example's picture
    view.get_by_text("green apple, 3d emoji").last.click()
    view.locator(".caption-label", has_text="mask").wait_for(timeout=LONG)
    view.get_by_label("prompt alone").check()
    view.get_by_label("Images of each").first.fill("1")
    press(view, "Generate")
    for name in ("prompt alone, seed 0", "canny, seed 0"):
        view.get_by_text(name).first.wait_for(timeout=LONG)
    assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_edited_fact_changes_the_answer(view):
    view.get_by_role("tab", name="REVEAL").click()
    question = "What is the capital?"
    view.get_by_text(question).last.click()
    sync_api.expect(view.get_by_label("Question")).to_have_value(question)  # the server fills in an example
    press(view, "Ask")
    view.locator(".answer", has_text="Tallinn").wait_for(timeout=LONG)
    fact = view.get_by_label("It says")
    fact.fill(fact.input_value().replace("Tallinn", "Riga"))
    press(view, "Save, and ask again")
    view.locator(".answer", has_text="Riga").wait_for(timeout=LONG)
    assert view.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
