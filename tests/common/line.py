"""The smallest thing to train: a line through points. For tests of the trainer, and as a program for its processes."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

TRUTH = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.0]], np.float32)
Hook = Callable[[int], None]


class Points:
    """Endless batches of points on a line; number n depends on n alone. `hook(n)` runs as batch n is drawn."""

    def __init__(self, seed: int, size: int, hook: Hook, spoilt: int):
        self.seed, self.size, self.hook, self.spoilt, self.drawn = seed, size, hook, spoilt, 0
        self.mine = slice(jax.process_index(), None, jax.process_count())  # this process's share

    def __iter__(self):
        return self

    def __next__(self):
        self.drawn += 1
        self.hook(self.drawn)
        x = np.random.default_rng([self.seed, self.drawn]).standard_normal((self.size, 3)).astype(np.float32)
        y = x @ TRUTH + 0.25
        ids = 100 * self.drawn + np.arange(self.size)
        y = y if self.drawn != self.spoilt else np.full_like(y, np.nan)
        return {name: value[self.mine] for name, value in dict(x=x, y=y, id=ids).items()}

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = state["drawn"]


@dataclasses.dataclass(frozen=True)
class Line:
    size: int = 8
    hook: Hook = lambda _: None
    spoilt: int = 0

    def batches(self, seed: int) -> Points:
        return Points(seed, self.size, self.hook, self.spoilt)

    def names(self, ids):
        return [f"point {number}" for number in ids]


@dataclasses.dataclass(frozen=True)
class Fit:
    """Least squares; the step and a random start are part of it, so that losing either would show."""

    while_painting: Callable[[], None] = lambda: None

    def init(self, key):
        return {"layer": {"kernel": 0.1 * jax.random.normal(key, (3, 2)), "bias": jnp.zeros((2,))}}

    def start(self):
        return None

    def frozen(self):
        return {"offset": np.zeros(2, np.float32)}

    def loss(self, params, batch, context):
        error = batch["x"] @ params["layer"]["kernel"] + params["layer"]["bias"] - batch["y"] + context.frozen["offset"]
        loss = jnp.mean(jnp.square(error))
        noise = 1e-3 * jax.random.uniform(context.key)
        return loss * (1 + 1e-3 * context.step.astype(jnp.float32) + noise), {"mse": loss}

    def pictures(self, params, batch):
        self.while_painting()
        return {"fit": np.full((4, 6, 3), 0.5, np.float32)}

    def export(self, path, params, metadata):
        path.write_text(json.dumps({"params": jax.tree.map(lambda x: x.tolist(), params), **metadata}))
        return path


def main(folder: str, settings: str) -> None:
    """`python line.py FOLDER JSON`: a run with these settings; known are
    "cluster", "trainer", "kill" (a step) and "smallest_split" (bytes)."""
    import os
    import signal

    from common.training import distributed, mesh
    from common.training.optimizer import OptimConfig
    from common.training.trainer import TrainerConfig, train

    chosen = json.loads(settings)
    distributed.join(distributed.ClusterConfig(**chosen.get("cluster", {})))
    kill = chosen.get("kill", 0)
    mesh.SMALLEST_SPLIT = chosen.get("smallest_split", mesh.SMALLEST_SPLIT)
    data = Line(hook=lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == kill else None)
    config = TrainerConfig(progress=False, **chosen["trainer"])
    train(Fit(), data, OptimConfig(lr=0.05, ema=0.9), config, Path(folder), 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
