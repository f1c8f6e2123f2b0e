import numpy as np
import pytest
from recipes.film_small.patterns import CONTRAST, SHORTEST, repeated


def noise(side=240):
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def likeness(picture):
    """Autocorrelation at all shifts of up to 100 pixels down and to both sides, of 1 at none."""
    grey = picture.mean(axis=-1) - picture.mean()
    power = np.abs(np.fft.fft2(grey, (400, 400))) ** 2
    seen = np.abs(np.fft.fft2(np.ones_like(grey), (400, 400))) ** 2
    shifts = np.fft.ifft2(power).real / np.maximum(np.fft.ifft2(seen).real, 1)
    return np.roll(shifts, 100, axis=1)[:101, :201] / shifts[0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_a_pattern_looks_like_itself_further_on(seed):
    texture = noise()
    pattern = repeated(np.random.default_rng(seed), texture, density=1.0)
    assert pattern.shape == texture.shape and pattern.dtype == np.uint8
    far = likeness(pattern)
    far[: int(SHORTEST) // 2, 100 - int(SHORTEST) // 2 : 100 + int(SHORTEST) // 2 + 1] = 0  # what is near itself
    assert far.max() > 0.4
    assert likeness(texture)[3:].max() < 0.1


def test_its_cells_can_be_told_apart(monkeypatch):
    """Something of the texture is left, so that no two cells are the same."""
    pattern = repeated(np.random.default_rng(1), noise(), density=1.0)
    for name in ("FAINT", "CLEAR"):
        monkeypatch.setattr(f"recipes.film_small.patterns.{name}", 0.0)
    same = repeated(np.random.default_rng(1), noise(), density=1.0)
    assert likeness(pattern)[3:].max() < likeness(same)[3:].max() - 0.001


def test_a_faint_texture_gets_contrast():
    texture = (127 + noise() // 64).astype(np.uint8)
    assert texture.std() < 2
    assert repeated(np.random.default_rng(0), texture, density=1.0).std() > 2 * texture.std()
    assert repeated(np.random.default_rng(0), noise(), density=1.0).std() < 2 * CONTRAST[1]


def test_what_is_too_small_for_a_pattern_stays_as_it_is():
    texture = noise(8)
    assert repeated(np.random.default_rng(0), texture, density=1.0) is texture


def test_the_same_seed_gives_the_same_pattern():
    one, two = (repeated(np.random.default_rng(4), noise(), density=1.0) for _ in range(2))
    np.testing.assert_array_equal(one, two)
