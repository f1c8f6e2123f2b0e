"""Walking a folder as people keep them: links to other folders, and links that lead back."""

from common.data.files import walk


def test_links_are_followed_but_not_in_circles(tmp_path):
    photos, other = tmp_path / "photos", tmp_path / "other"
    for folder in (photos / "a", other, photos / "left"):
        folder.mkdir(parents=True)
        (folder / "x.PNG").touch()
        (folder / "x.txt").touch()
    (photos / "a" / "up").symlink_to(photos)
    (photos / "b").symlink_to(other)  # a folder elsewhere, which links back
    (other / "back").symlink_to(photos)
    (photos / "c").symlink_to(other)  # once more, by another name
    (photos / ".hidden").symlink_to(other)
    found = [str(path.relative_to(photos)) for path in walk(photos, (".png",), leave=("left",))]
    assert found == ["a/x.PNG", "b/x.PNG", "c/x.PNG"]
    with_hidden = [str(path.relative_to(photos)) for path in walk(photos, (".png",), hidden=True, leave=("left",))]
    assert sorted(with_hidden) == [".hidden/x.PNG", "a/x.PNG", "b/x.PNG", "c/x.PNG"]
