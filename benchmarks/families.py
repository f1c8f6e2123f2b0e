"""The largest difference between this project's images and the PyTorch library's, for small random bases of each kind.

    python -m benchmarks.families        # prints the table of docs/diffusion.md

The library's images are those of `tests/data/plugins/families.npz`; where torch, diffusers and transformers are
installed, `python tests/data/plugins/make_families.py` makes them anew. Both sides draw weights and noise from names.
"""

import sys
from pathlib import Path

import numpy as np

from common import terminal

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "plugins"))


def main() -> None:
    import families

    from plugins.diffusion.samplers import sampler

    sampler._normal = families.noise  # type: ignore[assignment]
    terminal.say("| family | pipeline of the library | steps | largest difference | deviation of the image |")
    terminal.say("| --- | --- | ---: | ---: | ---: |")
    for name, family in families.FAMILIES.items():
        options = families.arguments(name)
        image, theirs = families.base(name)(**options)[0], families.IMAGES[name]
        row = f"{name} | {family['pipeline']} | {options['steps']} | {np.abs(image - theirs).max():.1e}"
        terminal.say(f"| {row} | {theirs.std():.2f} |")


if __name__ == "__main__":
    main()
