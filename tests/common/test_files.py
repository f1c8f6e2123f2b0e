"""Outputs appear whole or not at all, and foreign files are never touched."""

from pathlib import Path

import pytest
from command import tree
from refusal import refused

from common.io.files import atomic_folder, atomic_output, check_output_file, check_output_folder, require_file


def frames(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in numbers:
        (folder / f"frame_{n:05d}.png").write_text(f"new {n}")


def test_a_file_appears_only_when_the_body_ends(tmp_path):
    target = tmp_path / "made" / "deep" / "clip.mp4"
    with atomic_output(target) as temporary:
        assert (temporary.parent, temporary.suffix, temporary.name[0]) == (target.parent, ".mp4", ".")
        temporary.write_bytes(b"whole")
        assert not target.exists()
    assert sorted(tree(tmp_path)) == ["made", "made/deep", "made/deep/clip.mp4"]
    assert target.read_bytes() == b"whole"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("writer", [atomic_output, atomic_folder])
def test_a_failure_leaves_nothing_but_foreign_files(tmp_path, error, writer):
    (tmp_path / "kept").mkdir()
    with pytest.raises(error), writer(tmp_path / "kept" / "a" / "b" / "out.png") as temporary:
        if temporary.is_dir():
            frames(temporary, 0)
        else:
            temporary.write_bytes(b"half")
        raise error
    assert sorted(tree(tmp_path)) == ["kept"]
    with pytest.raises(error), writer(tmp_path / "a" / "b" / "out.png"):
        (tmp_path / "a" / "note.txt").write_text("mine")
        raise error
    assert sorted(tree(tmp_path)) == ["a", "a/note.txt", "kept"]


def test_an_existing_file_needs_overwrite_and_survives_failure(tmp_path):
    target = tmp_path / "out.png"
    target.write_bytes(b"old")
    assert f"{target}" in refused(FileExistsError, atomic_output(target).__enter__, match="--overwrite")
    with pytest.raises(RuntimeError), atomic_output(target, overwrite=True) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    with atomic_output(target, overwrite=True) as first, atomic_output(target, overwrite=True) as second:
        first.write_bytes(b"new")
        second.write_bytes(b"half")
    assert target.read_bytes() == b"new"
    assert sorted(tree(tmp_path)) == ["out.png"]


def test_a_foreign_file_that_arrives_meanwhile_survives(tmp_path):
    target, folder = tmp_path / "out.png", tmp_path / "clip"
    with pytest.raises(FileExistsError), atomic_output(target):
        target.write_bytes(b"theirs")
    assert target.read_bytes() == b"theirs"
    frames(folder, 0)
    with pytest.raises(FileExistsError), atomic_folder(folder, overwrite=True) as temporary:
        frames(temporary, 5)
        (folder / "note.txt").write_text("mine")
    assert sorted(tree(tmp_path)) == ["clip", "clip/frame_00000.png", "clip/note.txt", "out.png"]


def test_a_link_is_written_through_and_the_file_has_the_usual_mode(tmp_path):
    """Also if a writer renames a private file of its own to the temporary, as safetensors does."""
    (tmp_path / "real").mkdir()
    real, link, usual = tmp_path / "real" / "x.png", tmp_path / "link.png", tmp_path / "usual"
    real.write_bytes(b"old")
    link.symlink_to(real)
    usual.touch()
    with atomic_output(link, overwrite=True) as temporary:
        private = tmp_path / "private"
        private.touch(mode=0o600)
        private.write_bytes(b"new")
        private.replace(temporary)
    assert link.is_symlink() and real.read_bytes() == b"new"
    assert real.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize("check", [check_output_file, check_output_folder])
def test_checks_find_unwritable_places_and_leave_no_trace(tmp_path, check):
    (tmp_path / "file").write_text("x")
    long = "x" * 300 + ".png"
    for kind, path, word in [
        (NotADirectoryError, tmp_path / "file" / "out.png", str(tmp_path / "file" / "out.png")),
        (OSError, "/proc/nowhere/out.png", "/proc/nowhere/out.png"),  # refuses even root
        (OSError, tmp_path / long, long),
        (ValueError, "", "''"),
    ]:
        assert word in refused(kind, check, path)
    check(tmp_path / "a" / "b" / "c")
    assert sorted(tree(tmp_path)) == ["file"]


def test_foreign_files_folders_and_devices_are_never_touched(tmp_path):
    target = tmp_path / "clip"
    frames(target, 0)
    (target / "frame_00001.png.txt").write_text("mine")
    for overwrite in (False, True):
        message = refused(FileExistsError, atomic_folder(target, overwrite=overwrite).__enter__, match=str(target))
        assert "frame_00001.png.txt" in message
    frame = target / "frame_00000.png"
    refused(NotADirectoryError, atomic_folder(frame, overwrite=True).__enter__, match=str(frame))
    refused(IsADirectoryError, atomic_output(tmp_path, overwrite=True).__enter__, match=str(tmp_path))
    refused(OSError, atomic_output("/dev/null", overwrite=True).__enter__, match="/dev/null")
    assert sorted(tree(target)) == ["frame_00000.png", "frame_00001.png.txt"]


def test_a_new_or_empty_folder_is_filled_and_overwrite_replaces_all_its_frames(tmp_path):
    (tmp_path / "clip").mkdir()
    for name in ("new", "clip"):
        with atomic_folder(tmp_path / name) as temporary:
            frames(temporary, 0, 1, 2, 3)
        assert len(tree(tmp_path / name)) == 4
    target = tmp_path / "clip"
    (target / "frame_00000.png").write_text("old")
    refused(FileExistsError, atomic_folder(target).__enter__, match=f"{target}.* 4 .*--overwrite")
    with atomic_folder(target, overwrite=True) as temporary:
        frames(temporary, 0, 1)
    assert sorted(tree(target)) == ["frame_00000.png", "frame_00001.png"] and len(tree(tmp_path)) == 8
    assert (target / "frame_00000.png").read_text() == "new 0"


def test_require_file(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    assert require_file(str(tmp_path / "full")) == tmp_path / "full"
    kinds = {"none": FileNotFoundError, ".": IsADirectoryError, "empty": ValueError, "full/x": NotADirectoryError}
    for name, kind in kinds.items():
        assert str(tmp_path / name) in refused(kind, require_file, tmp_path / name)
