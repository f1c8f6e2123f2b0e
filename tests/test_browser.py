"""The page of examples/browser in a real browser: its tokens are those of Python, and its pictures those of JAX.

Needs a Chromium, and onnxruntime-web: npm's, or its archive in the folder that BROWSER_ARCHIVES names."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from common.io.images import read_image, shrink
from plugins import control, diffusion
from plugins.conditions.registry import make
from plugins.diffusion.samplers import ddim, keys_of_seeds, starting_noise

sync_api = pytest.importorskip("playwright.sync_api")

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARCHIVES = os.environ.get("BROWSER_ARCHIVES")
PROMPTS = ["", "red apple, 3d emoji", "  Two   CAFÉS & 30 ducks -- it's ", "日本 🍎!", "pneumonoultramicroscopic " * 8]
LONG = 120_000  # milliseconds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
    pytest.mark.skipif(not (ARCHIVES or shutil.which("npm")), reason="no npm, which brings onnxruntime-web"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    words = [sys.executable, str(ROOT / "examples" / "browser" / "make.py"), "-o", str(folder)]
    subprocess.run([*words, *(["--archives", ARCHIVES] if ARCHIVES else [])], check=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with sync_api.sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 390, "height": 844})
            outside = []
            page.on("request", lambda request: outside.append(request.url))
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.get_by_role("button", name="Draw", exact=True).and_(page.locator(":enabled")).wait_for(timeout=LONG)
            yield page
            assert all(url.startswith(f"http://127.0.0.1:{server.server_port}/") for url in outside)
            browser.close()
        server.shutdown()


def test_tokens_are_those_of_python(page):
    tokenizer, length = diffusion.load_tokenizer(ROOT / "plugins/weights/diffusion-small"), 24
    for prompt in PROMPTS:
        found = page.evaluate("prompt => diffusion.tokenizer.row(prompt)", prompt)
        assert found == tokenizer(prompt, length)[0].tolist(), prompt


def test_a_picture_from_a_prompt_and_edges_is_that_of_jax(page):
    pipeline, plugin, steps = diffusion.load(), control.load("canny-small"), 20
    edges = make("canny", shrink(read_image(ROOT / "examples" / "apple.png"), 64))
    options = {"seeds": 0, "steps": steps, "guidance": 4.0, "sampler": "ddim"}
    noise = ddim.start(starting_noise(keys_of_seeds([0]), (1, 16, 16, 4)), pipeline.schedule, steps=steps)
    given = {"prompt": "green apple, 3d emoji", "noise": channels_first(np.asarray(noise)[0])}
    draw = "async given => Array.from((await diffusion.draw(given)).image)"
    for controls, more in (([], {}), ([plugin.on(edges)], {"edges": channels_first(edges)})):
        image = pipeline(given["prompt"], controls=controls, **options)[0]
        found = np.array(page.evaluate(draw, given | more)).reshape(3, 64, 64).transpose(1, 2, 0)
        print(f"largest difference: {np.abs(found - image).max():.2e}")
        assert np.abs(found - image).max() < 1e-2
        assert image.std() > 0.1


def test_a_visitor_draws_edges_and_sees_a_picture(page):
    box = page.get_by_label("Edges to follow").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 80, box["y"] + 90, steps=5)
    page.mouse.up()
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.get_by_text(re.compile(r"Drawn in \d")).wait_for(timeout=LONG)
    pixels = "document.getElementById('picture').getContext('2d').getImageData(0, 0, 64, 64).data"
    assert np.std(page.evaluate(f"Array.from({pixels})")) > 5
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if shots := os.environ.get("BROWSER_SHOTS"):
        page.screenshot(path=f"{shots}/browser.png", full_page=True)


def channels_first(image: np.ndarray) -> list[float]:
    return image.transpose(2, 0, 1).ravel().tolist()
