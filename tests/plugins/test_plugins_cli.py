"""The `plugins` command as a user meets it: pictures are decoded again, what goes wrong is one line and no file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import ldm
import numpy as np
import pytest
import safetensors.numpy
from networks import DATA, folder, lora
from tiny_base import diffusion_base

from common.io.images import image_size, read_image, write_image
from plugins.cli.generate import read_lora
from plugins.cli.main import main

APPLE = "a red apple"


@pytest.fixture(autouse=True)
def leave_the_process_alone(monkeypatch):
    """`setup` changes the allocator and turns on a cache in the user's home; neither ends with a test."""
    monkeypatch.setattr("plugins.cli.generate.setup", lambda: None)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return diffusion_base().save(tmp_path_factory.mktemp("bases") / "base")


@pytest.fixture
def here(tmp_path, monkeypatch, saved) -> Path:
    """A working folder with a copy of the base in it."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved, "base")
    return tmp_path


def tree(folder: Path) -> dict[str, bytes | None]:
    """All that is on disk, to the byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def refused(words: list[str], capsys, code: int = 2) -> str:
    """What the command says when it ends with this code; one line, and nothing written."""
    before = tree(Path())
    with pytest.raises(SystemExit) as stop:
        main(words)
    said = capsys.readouterr().err
    assert stop.value.code == code and said.count("\n") == 1 and tree(Path()) == before
    return said


def generate(*words: str) -> None:
    main(["generate", "--prompt", APPLE, "--base", "base", "--steps", "3", *words])


def test_one_picture_and_one_from_it(here, capsys):
    generate("--seed", "5", "--batch", "2", "-o", "apple.png")
    said = capsys.readouterr()
    expected = "1 picture 16x16, seed 5, 3 steps of ddim, guidance 7.5, base (0.1 M parameters, f32) -> apple.png\n"
    assert said.out == expected and said.err == ""  # no bar where no terminal is
    truth = diffusion_base()(APPLE, seeds=5, steps=3, batch=2)[0]
    np.testing.assert_allclose(read_image("apple.png"), truth, atol=0.01)
    generate("--image", "apple.png", "--strength", "0.34", "--quiet", "-o", "again.webp", "--batch", "2")
    assert image_size("again.webp") == (16, 16) and capsys.readouterr().out == ""


def test_many_pictures_are_numbered_by_seed(here, capsys):
    """On both devices; a long prompt is told, not refused."""
    words = ["--seed", "9", "--count", "3", "-o", "out", "--sheet", "sheet.png", "--prompt", APPLE + " tail" * 20]
    generate(*words)
    said = capsys.readouterr()
    assert said.out.startswith("3 pictures 16x16, seed 9 to 11, ") and said.err.count("\n") == 1
    assert said.err.startswith("warning: prompts have 14 tokens here; cut off the end of 'a red apple tail")
    assert sorted(p.name for p in Path("out").iterdir()) == ["seed_0009.png", "seed_0010.png", "seed_0011.png"]
    assert image_size("sheet.png")[0] > 2 * 16
    assert "out holds 3 frames already" in refused(["generate", "--base", "base", *words], capsys)
    Path("out/mine.txt").touch()
    assert "holds 'mine.txt'" in refused(["generate", "--base", "base", *words, "--overwrite"], capsys)


def test_info_tells_what_a_base_is(here, capsys):
    main(["info", "base"])
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:])
    assert lines["vae"].endswith("parameters, stored as float32, 8-8, 4 channels at 1/2 of the side")
    assert lines["tokenizer"] == "1,000 tokens; prompts of 14"
    assert lines["predicts"] == "epsilon, 1000 timesteps, scaled_linear betas"
    assert lines["sampler"] == "ddim" and lines["pictures"] == "16x16; other sides too, multiples of 2"


def damage_folder(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def make_sdxl(folder: Path) -> None:
    index = json.loads((folder / "model_index.json").read_text())
    more = {
        "_class_name": "StableDiffusionXLPipeline",
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    }
    (folder / "model_index.json").write_text(json.dumps(index | more))


def swap_unet(folder: Path) -> None:
    shutil.copy(DATA / "controlnet" / "config.json", folder / "unet")


def cut_short(folder: Path) -> None:
    file = folder / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickle_instead(folder: Path) -> None:
    (folder / "unet" / "diffusion_pytorch_model.safetensors").rename(folder / "unet" / "diffusion_pytorch_model.bin")


def lose_vocab(folder: Path) -> None:
    (folder / "tokenizer" / "vocab.json").unlink()


def lose_scheduler(folder: Path) -> None:
    (folder / "scheduler" / "scheduler_config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_folder, "model_index.json"),
        (make_sdxl, "text_encoder_2"),
        (swap_unet, "'ControlNetModel'"),
        (cut_short, "vae/diffusion_pytorch_model.safetensors"),
        (pickle_instead, "diffusion_pytorch_model.bin"),
        (lose_vocab, "vocab.json"),
        (lose_scheduler, "scheduler_config.json"),
    ],
)
@pytest.mark.parametrize("words", [["info", "base"], ["generate", "--prompt", APPLE, "--base", "base", "-o", "a.png"]])
def test_what_is_no_base_is_refused_in_a_line(here, capsys, damage, said, words):
    damage(Path("base"))
    assert said in refused(words, capsys)


def single_file(path: str, extra: tuple[str, ...] = ()) -> None:
    """The smallest file in LDM names, all zeros: level widths that 32 groups and 8 heads divide."""
    text = safetensors.numpy.load_file(folder("text_encoder") / "model.safetensors")
    shapes = {f"model.diffusion_model.{name}": shape for name, _, shape in ldm.unet((32, 32), context=32)}
    shapes |= {f"first_stage_model.{name}": shape for name, _, shape in ldm.vae((32, 32))}
    shapes |= {f"cond_stage_model.transformer.text_model.{key}": value.shape for key, value in text.items()}
    shapes |= dict.fromkeys(extra, (1,))
    safetensors.numpy.save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, path)


def test_a_single_file_takes_its_tokenizer_from_beside_it(here, capsys):
    single_file("v1.safetensors")
    assert "tokenizer" in refused(["info", "v1.safetensors"], capsys)
    main(["info", "v1.safetensors", "--tokenizer", "base/tokenizer"])
    capsys.readouterr()
    shutil.copy("base/tokenizer/vocab.json", ".")
    shutil.copy("base/tokenizer/merges.txt", ".")
    main(["info", "v1.safetensors"])
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[1:])
    assert "stored as float16, 32-32, 4 channels, text states of 32" in lines["unet"]
    assert lines["predicts"].startswith("epsilon, 1000 timesteps") and lines["sampler"] == "plms"


def test_single_files_of_other_models_are_refused(here, capsys):
    single_file("xl.safetensors", ("model.diffusion_model.label_emb.0.0.weight",))
    said = refused(["info", "xl.safetensors"], capsys)
    assert "label_emb" in said
    safetensors.numpy.save_file({"double_blocks.0.img_attn.qkv.weight": np.zeros(1, np.float32)}, "flux.safetensors")
    said = refused(["info", "flux.safetensors"], capsys)
    assert "double_blocks.0" in said
    Path("v1.ckpt").write_bytes(b"\x80\x02}.")
    assert "v1.ckpt" in refused(["info", "v1.ckpt"], capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sampler", "eulr"], "'eulr'"),
        (["--width", "17"], "17x16"),
        (["--strength", "0.5"], "strength=0.5"),
        (["--image", "none.png"], "none.png"),
        (["--image", "wide.png", "--height", "16", "--width", "16"], "20x16"),
        (["--count", "0"], "--count 0"),
        (["--count", "2"], "a.png"),
        (["--batch", "0"], "--batch 0"),
        (["--seed", "-1"], "--seed -1"),
        (["-o", "a.bmp"], "'.bmp'"),
        (["-o", "taken.png"], "taken.png"),
        (["--sheet", "sheet.mp4"], "'.mp4'"),
        (["--lora", "none.safetensors"], "none.safetensors"),
        (["--lora", "none.safetensors:much"], "'much'"),
        (["--base", "nowhere"], "'nowhere'"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(here, capsys, words, said):
    write_image("wide.png", np.zeros((16, 20, 3), np.float32))
    write_image("taken.png", np.zeros((2, 2, 3), np.float32))
    assert said in refused(["generate", "--prompt", APPLE, "--base", "base", "-o", "a.png", *words], capsys)


def test_no_base_and_no_command(here, capsys, monkeypatch):
    monkeypatch.setattr("plugins.diffusion.io.pretrained.WEIGHTS", here / "weights")
    assert "no base" in refused(["info"], capsys)
    assert "'draw'" in refused(["draw"], capsys)
    (here / "weights").mkdir()
    shutil.move("base", here / "weights" / "diffusion-small")
    main(["info"])
    assert capsys.readouterr().out.startswith(str(here / "weights" / "diffusion-small"))


def test_a_weight_follows_a_lora_file_after_a_colon():
    file = str(lora("kohya"))
    assert [read_lora(word)[1] for word in (file, f"{file}:0.8", f"{file}:-1")] == [1.0, 0.8, -1.0]


def test_help_does_not_wait_for_jax():
    script = (
        "import contextlib, sys\nfrom plugins.cli.main import main\nmain(['--help'])\n"
        "with contextlib.suppress(SystemExit):\n    main(['generate', '--help'])\n"
        "print('jax' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "generate  " in result.stdout and "--guidance" in result.stdout
    assert result.stdout.endswith("False\n")
