"""Outputs appear whole or not at all, and nothing foreign is touched."""

import os
from pathlib import Path

import pytest

from common.io.files import atomic_folder, atomic_output, check_output_file, check_output_folder, require_file


def tree(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def one_line(error: pytest.ExceptionInfo, *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_file_appears_only_when_the_body_ends(tmp_path):
    target = tmp_path / "made" / "deep" / "clip.mp4"
    with atomic_output(target) as temporary:
        assert temporary.parent == target.parent
        assert temporary.suffix == ".mp4"
        assert temporary.name.startswith(".")
        temporary.write_bytes(b"whole")
        assert not target.exists()
    assert tree(tmp_path) == ["made", "made/deep", "made/deep/clip.mp4"]
    assert target.read_bytes() == b"whole"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("writer", [atomic_output, atomic_folder])
def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path, error, writer):
    (tmp_path / "kept").mkdir()
    with pytest.raises(error), writer(tmp_path / "kept" / "a" / "b" / "out.png") as temporary:
        if temporary.is_dir():
            (temporary / "frame_00000.png").write_bytes(b"half")
        else:
            temporary.write_bytes(b"half")
        raise error
    assert tree(tmp_path) == ["kept"]


def test_a_parent_that_gained_foreign_files_is_left(tmp_path):
    with pytest.raises(ValueError), atomic_output(tmp_path / "a" / "b" / "out.png"):
        (tmp_path / "a" / "note.txt").write_text("mine")
        raise ValueError
    assert tree(tmp_path) == ["a", "a/note.txt"]


def test_an_existing_file_needs_overwrite_and_survives_failure(tmp_path):
    target = tmp_path / "out.png"
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError) as error, atomic_output(target):
        pytest.fail("the body must not run")
    one_line(error, str(target), "--overwrite")
    with pytest.raises(RuntimeError), atomic_output(target, overwrite=True) as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    with atomic_output(target, overwrite=True) as temporary:
        temporary.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert tree(tmp_path) == ["out.png"]


def test_a_file_made_by_somebody_else_meanwhile_survives(tmp_path):
    target = tmp_path / "out.png"
    with pytest.raises(FileExistsError), atomic_output(target):
        target.write_bytes(b"theirs")
    assert target.read_bytes() == b"theirs"
    assert tree(tmp_path) == ["out.png"]


def test_two_writers_of_one_target_do_not_share_a_temporary(tmp_path):
    with atomic_output(tmp_path / "a.png", True) as one, atomic_output(tmp_path / "a.png", True) as two:
        assert one != two


def test_a_link_is_written_through_and_the_file_is_readable_as_any_other(tmp_path):
    (tmp_path / "real").mkdir()
    real, link, plain = tmp_path / "real" / "x.png", tmp_path / "link.png", tmp_path / "plain"
    real.write_bytes(b"old")
    link.symlink_to(real)
    plain.touch()
    with atomic_output(link, overwrite=True) as temporary:
        temporary.write_bytes(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert real.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("check", [check_output_file, check_output_folder])
def test_places_where_nothing_can_be_written(tmp_path, check):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotADirectoryError) as error:
        check(tmp_path / "file" / "out.png")
    one_line(error, str(tmp_path / "file" / "out.png"))
    with pytest.raises(OSError) as error:  # a file system that refuses even root
        check("/proc/nowhere/out.png")
    one_line(error, "/proc/nowhere/out.png")
    with pytest.raises(OSError) as error:
        check(tmp_path / ("x" * 300 + ".png"))
    one_line(error, "too long")
    with pytest.raises(ValueError) as error:
        check("")
    one_line(error, "no output name")
    assert tree(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; /proc above is tested as root too")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(PermissionError) as error:
        check_output_file(tmp_path / "locked" / "out.png")
    one_line(error, str(tmp_path / "locked" / "out.png"))


def test_folders_and_devices_are_no_output_files(tmp_path):
    with pytest.raises(IsADirectoryError) as error:
        check_output_file(tmp_path, overwrite=True)
    one_line(error, str(tmp_path))
    with pytest.raises(OSError) as error:
        check_output_file("/dev/null", overwrite=True)
    one_line(error, "not a regular file")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as error:
        check_output_folder(tmp_path / "file", overwrite=True)
    one_line(error, "not a folder")


def test_checks_leave_no_trace(tmp_path):
    check_output_file(tmp_path / "a" / "b" / "c.png")
    check_output_folder(tmp_path / "a" / "b" / "c")
    assert tree(tmp_path) == []


def frames(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for n in numbers:
        (folder / f"frame_{n:05d}.png").write_text(f"new {n}")


def test_a_new_or_empty_folder_is_filled(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with atomic_folder(tmp_path / name) as temporary:
            frames(temporary, 0, 1)
        assert tree(tmp_path / name) == ["frame_00000.png", "frame_00001.png"]
    assert tree(tmp_path)[0] == "empty"
    assert len(tree(tmp_path)) == 6


def test_overwrite_replaces_the_frames_of_a_folder_and_drops_stale_ones(tmp_path):
    target = tmp_path / "clip"
    frames(target, 0, 1, 2, 3)
    (target / "frame_00000.png").write_text("old")
    with pytest.raises(FileExistsError) as error:
        check_output_folder(target)
    one_line(error, "4 frames", "--overwrite")
    with atomic_folder(target, overwrite=True) as temporary:
        frames(temporary, 0, 1)
    assert tree(tmp_path) == ["clip", "clip/frame_00000.png", "clip/frame_00001.png"]
    assert (target / "frame_00000.png").read_text() == "new 0"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_a_foreign_file_is_never_touched(tmp_path, overwrite):
    target = tmp_path / "clip"
    frames(target, 0)
    (target / "frame_00001.png.txt").write_text("mine")
    with pytest.raises(FileExistsError) as error, atomic_folder(target, overwrite=overwrite):
        pytest.fail("the body must not run")
    one_line(error, str(target), "frame_00001.png.txt")
    assert tree(target) == ["frame_00000.png", "frame_00001.png.txt"]


def test_a_foreign_file_that_arrives_meanwhile_survives(tmp_path):
    target = tmp_path / "clip"
    frames(target, 0)
    with pytest.raises(FileExistsError), atomic_folder(target, overwrite=True) as temporary:
        frames(temporary, 5)
        (target / "note.txt").write_text("mine")
    assert tree(tmp_path) == ["clip", "clip/frame_00000.png", "clip/note.txt"]


def test_require_file(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "full").write_text("x")
    assert require_file(str(tmp_path / "full")) == tmp_path / "full"
    for name, kind in {
        "none": FileNotFoundError,
        ".": IsADirectoryError,
        "empty": ValueError,
        "full/x": NotADirectoryError,
    }.items():
        with pytest.raises(kind) as error:
            require_file(tmp_path / name)
        one_line(error, str(tmp_path / name))


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path):
    """A writer that renames a private file of its own to the path it was given, as safetensors does."""
    (tmp_path / "usual").touch()
    with atomic_output(tmp_path / "out") as temporary:
        private = tmp_path / "private"
        private.touch(mode=0o600)
        private.replace(temporary)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode
