"""Evaluate any weights of any system: `python eval.py experiment=film_small weights=film-small`.

`sets=[...]`, `metrics=[...]`, `limit=N` and `scales=[...]` choose a part; for FILM, `weights=average` or
`weights=dis-flow` scores a method without training. The table is printed, and written with the scores of each example
to `output` (configs/eval.yaml). docs/training.md lists the evaluations.
"""

import hydra
from omegaconf import DictConfig

from common.training.run import evaluate_from_config, program


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
def main(config: DictConfig) -> None:
    evaluate_from_config(config)


if __name__ == "__main__":
    program(main)
