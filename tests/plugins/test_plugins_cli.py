"""The `plugins` command: written images are read again, an error is one line and no file."""

import dataclasses
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import ldm
import numpy as np
import pytest
import safetensors.numpy
from command import printed
from commands import APPLE, GENERATE, generate, mistake
from networks import folder
from refusal import refused
from tiny_base import diffusion_base

from common.io.images import image_size, read_image, write_image
from plugins.cli.commands import Web
from plugins.cli.main import main
from plugins.control.loading import CONTROLS
from plugins.diffusion.io import base as bases


@pytest.fixture
def here(tmp_path, monkeypatch, saved) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "base")
    return tmp_path


@pytest.mark.long
def test_one_image_and_one_from_it(here, capsys):
    generate("--seed 5 --batch 2 -o apple.png")
    printed = capsys.readouterr()
    for value in ("16x16", "seed 5", "3 steps of ddim", "guidance 7.5", "0.1 M parameters, float32", "apple.png"):
        assert value in printed.out
    assert printed.out.count("\n") == 1 and printed.err == ""  # no bar outside of a terminal
    expected = diffusion_base()(APPLE, seeds=5, steps=3, batch=2)[0]
    np.testing.assert_allclose(read_image("apple.png"), expected, atol=0.01)
    generate("--image apple.png --strength 0.34 --quiet -o again.webp --batch 2")
    assert image_size("again.webp") == (16, 16) and capsys.readouterr().out == ""


def test_json_is_one_object(here, capsys):
    found = printed(capsys, main, *shlex.split(f"{GENERATE} --seed 5 --count 2 -o out"))
    assert [row["image"] for row in found["images"]] == ["out/seed_0005.png", "out/seed_0006.png"]
    assert (found["size"], found["steps"], found["sampler"]) == ([16, 16], 3, "ddim")


@pytest.mark.long
def test_many_images_are_numbered_by_seed(here, capsys):
    """On both devices; a long prompt is a warning."""
    options = f"--seed 9 --count 3 -o out --sheet sheet.png --preview now.png --prompt {'apple-' * 20}"
    generate(options)
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(p.name for p in Path("out").iterdir()) == ["seed_0009.png", "seed_0010.png", "seed_0011.png"]
    assert image_size("sheet.png")[0] > 2 * 16 and image_size("now.png") == (32, 32)
    assert "out" in mistake(f"{GENERATE} {options}", capsys)
    Path("out/mine.txt").touch()
    assert "mine.txt" in mistake(f"{GENERATE} {options} --overwrite", capsys)


def info(capsys, words: str = "") -> dict[str, str]:
    main(f"info {words}".split())
    return dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:])


def test_info_of_a_folder(here, capsys):
    rows = info(capsys, "base")
    assert rows["vae"].endswith("parameters, stored as float32, 8-8, 4 channels at 1/2 of the side")
    assert rows["tokenizer"] == "1,000 tokens; prompts of 14"
    assert rows["predicts"] == "epsilon, 1000 timesteps, scaled_linear betas"
    assert rows["sampler"] == "ddim" and rows["images"].startswith("16x16")


def test_guidance_below_1_is_a_warning(here, capsys, monkeypatch):
    monkeypatch.setattr("plugins.cli.generate.images", lambda *_: iter(np.zeros((1, 4, 4, 3), np.float32)))
    for guidance, lines in (("0", 1), ("1", 0), ("2", 0)):
        generate(f"--guidance {guidance} -o {guidance}.png")
        assert capsys.readouterr().err.count("\n") == lines


def test_a_missing_option_is_named_beside_a_misspelt_one(here, capsys):
    error = mistake("generate --promt apple -o a.png", capsys)
    assert "--prompt" in error and "--promt" in error


def test_info_of_a_plugin_by_its_name_folder_or_file(here, capsys):
    rows = info(capsys, "canny-small")
    assert rows["MediaPipePlugin"] == "576,496 parameters, stored as float16" and rows["condition"] == "canny"
    path = CONTROLS.find("canny-small")
    assert info(capsys, str(path)) == info(capsys, str(next(path.glob("*.safetensors")))) == rows


def test_folders_of_other_models_and_damaged_ones_are_refused(here, capsys):
    Path("base/scheduler/scheduler_config.json").unlink()
    assert "scheduler_config.json" in mistake("info base", capsys)
    index = Path("base/model_index.json")
    index.write_text(json.dumps(json.loads(index.read_text()) | {"text_encoder_3": ["transformers", "T5EncoderModel"]}))
    assert "text_encoder_3" in mistake("info base", capsys)
    index.unlink()
    assert "model_index.json" in mistake("info base", capsys)


def single_file(path: str, linear: bool = False) -> None:
    """The smallest file in LDM names, all zeros: level widths that 32 groups and 8 heads divide; `linear`: of 2.x."""
    text = safetensors.numpy.load_file(folder("text_encoder") / "model.safetensors")
    unet = ldm.unet((64, 64) if linear else (32, 32), context=32, linear=linear)
    shapes = {f"model.diffusion_model.{name}": shape for name, _, shape in unet}
    shapes |= {f"first_stage_model.{name}": shape for name, _, shape in ldm.vae((32, 32))}
    shapes |= {f"cond_stage_model.transformer.text_model.{key}": value.shape for key, value in text.items()}
    safetensors.numpy.save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, path)


def test_info_of_a_single_file_with_a_tokenizer_beside_it(here, capsys):
    single_file("v1.safetensors")
    assert "tokenizer" in mistake("info v1.safetensors", capsys)
    named = info(capsys, "v1.safetensors --tokenizer base/tokenizer")
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(f"base/tokenizer/{name}", ".")
    rows = info(capsys, "v1.safetensors")
    assert rows == named and rows["unet"].endswith("stored as float16, 32-32, 4 channels, text states of 32")
    assert rows["predicts"].startswith("epsilon, 1000 timesteps") and rows["sampler"] == "plms"


def test_a_file_of_2_x_that_predicts_v_makes_larger_images(here, capsys):
    single_file("v2.safetensors", linear=True)
    words = "v2.safetensors --tokenizer base/tokenizer --prediction"
    sides = [info(capsys, f"{words} {kind}")["images"].split(";")[0] for kind in ("epsilon", "v_prediction")]
    assert sides == ["128x128", "192x192"]


@pytest.mark.parametrize(("before", "left"), [([], ["seed_0007.png", "seed_0008.png"]), (["seed_0001.png"],) * 2])
def test_a_stop_leaves_the_images_so_far(here, capsys, monkeypatch, before, left):
    """In a new folder; one that was to be replaced stays as it is."""

    def images(*_):
        yield from np.zeros((2, 4, 4, 3), np.float32)
        raise KeyboardInterrupt(15)

    for name in before:
        write_image(f"out/{name}", np.ones((2, 2, 3), np.float32))
    monkeypatch.setattr("plugins.cli.generate.images", images)
    with pytest.raises(SystemExit) as stop:
        generate("--seed 7 --count 5 -o out --overwrite")
    assert stop.value.code == 128 + 15
    assert ("--seed 9 --count 3" in capsys.readouterr().err) == (not before)
    assert sorted(path.name for path in Path("out").iterdir()) == left and len(list(here.iterdir())) == 2


def test_a_sheet_among_the_images_is_replaced_with_them(here, monkeypatch):
    monkeypatch.setattr("plugins.cli.generate.images", lambda *_: iter(np.zeros((2, 4, 4, 3), np.float32)))
    for _ in range(2):
        generate("--count 2 -o out --sheet out/sheet.png --overwrite --quiet")
    assert sorted(path.name for path in Path("out").iterdir()) == ["seed_0000.png", "seed_0001.png", "sheet.png"]


MISTAKES = {  # words -> a value in the error
    "--image none.png": "none.png",
    "--image wide.png --height 16 --width 16": "20x16",
    "--count 0": "--count 0",
    "--count 2": "a.png",
    "--batch 0": "--batch 0",
    "--seed -1": "seed -1",
    "-o a.bmp": "'.bmp'",
    "-o taken.png": "taken.png",
    "--sheet sheet.mp4": "'.mp4'",
    "--sheet a.png": "--sheet a.png",
    "--sheet b.png --preview b.png": "--preview b.png",
    "--preview-vae base": "--preview",
    "-o new --preview new/now.png": "--preview new/now.png",
    "--embedding cat=none.safetensors": "none.safetensors",
    "-o out --sheet out/seed_7.png --overwrite": "--sheet out/seed_7.png",
    "--lora none.safetensors": "none.safetensors",
    "--lora none.safetensors:much": "'much'",
    "--base nowhere": "'nowhere'",
    "-o a.txt": ".txt",
    "-o photo.png --image photo.png --overwrite": "photo.png",
    "-o photo.png --plugin p --condition photo.png --overwrite": "photo.png",
    "--sheet photo.png --image photo.png --overwrite": "--sheet photo.png",
    "-o out --image out/seed_0003.png --overwrite": "out",
    "--lora http://127.0.0.1:9/x.html": "http://127.0.0.1:9/x.html",
}


def test_errors_are_one_line_and_write_nothing(here, capsys):
    for name, size in {"wide": (16, 20), "taken": (2, 2), "photo": (32, 32), "out/seed_0003": (32, 32)}.items():
        write_image(f"{name}.png", np.zeros((*size, 3), np.float32))
    for words, value in MISTAKES.items():
        assert value in mistake(f"{GENERATE} -o a.png {words}", capsys), words


def test_no_base_and_no_command(here, capsys, monkeypatch):
    monkeypatch.setattr(bases, "BASES", dataclasses.replace(bases.BASES, folder=here / "weights"))
    assert "base" in mistake("info", capsys) and "'draw'" in mistake("draw", capsys)
    (here / "weights").mkdir()
    shutil.move("base", here / "weights" / "diffusion-small")
    assert info(capsys)["sampler"] == "ddim"


def test_help_and_conditions_do_not_import_jax():
    script = "import sys, plugins.cli.condition\nfrom plugins.cli.main import main; main(['--help'])\n"
    script += "try: main(['generate', '--help'])\nfinally: assert {'jax', 'mediapipe'}.isdisjoint(sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--guidance" in result.stdout


def test_the_page_of_the_shipped_base_by_its_name_has_its_plugins():
    pytest.importorskip("gradio")
    from plugins.cli.web import networks_of

    assert [*networks_of(Web(), bases.BASES.find("diffusion-small"))] == ["canny", "depth", "mask", "scribble"]
    assert not networks_of(Web(base="mine"), Path("mine"))
    for words in ("canny", "edges=folder", "folder"):
        refused(ValueError, networks_of, Web(plugin=(words,)), Path("mine"), match="KIND=PLUGIN")


def test_on_the_page_strokes_without_an_image_are_a_scribble_as_they_are():
    pytest.importorskip("gradio")
    from plugins.cli.web import options_of

    clear, photo = np.zeros((8, 8, 4), np.uint8), np.full((8, 8, 4), 255, np.uint8)
    for background in (None, clear):
        assert options_of("scribble", {"background": background}) == {"drawing": True}
        assert options_of("canny", {"background": background}) == {}
        assert options_of("depth", {"background": background}) == {"inflate": True}
    assert options_of("scribble", {"background": photo}) == {}
