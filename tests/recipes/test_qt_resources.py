"""Qt resource files of all versions are read; others and damaged ones are one line of error."""

import pytest
from made_archives import rcc_bytes

from recipes.downloads.qt_resources import resources

FILES = {"a/b/one.txt": b"one", "a/b/two.txt": b"two" * 50, "a/drei ä.txt": b"", "four": b"4"}


def everything(data):
    return dict(resources(data, "x.rcc", lambda _: True))


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("packed", [(), ("a/b/two.txt", "four")])
def test_files_come_back_with_their_paths(version, packed):
    data = rcc_bytes(FILES, version, packed)
    assert everything(data) == FILES
    assert dict(resources(data, "x.rcc", lambda path: path.endswith("two.txt"))) == {"a/b/two.txt": b"two" * 50}


def refused(data) -> str:
    with pytest.raises(ValueError) as error:
        everything(data)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("x.rcc")
    return str(error.value)


def test_what_is_no_resource_file_is_refused():
    assert "no Qt resource file" in refused(b"<html>not found</html>")
    assert "no Qt resource file" in refused(rcc_bytes(FILES, version=4))


@pytest.mark.parametrize("packed", [(), tuple(FILES)])
def test_a_file_cut_anywhere_is_refused(packed):
    data = rcc_bytes(FILES, packed=packed)
    for length in range(0, len(data) - 8, 7):  # nobody reads the last eight bytes, a time
        assert "damaged or cut short" in refused(data[:length])


def test_a_tree_that_bites_its_tail_ends():
    assert "twice" in refused(rcc_bytes({"a/b": b"one"}, first_child=0))


def test_an_unknown_compression_is_named():
    assert "Zstandard" in refused(rcc_bytes(FILES, flags=4))
