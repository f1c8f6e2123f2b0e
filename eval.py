"""Score weights on an experiment's test sets: `python eval.py experiment=film_small weights=film-small`."""

import hydra
from omegaconf import DictConfig

from common.training.run import evaluate_from_config


@hydra.main(version_base="1.3", config_path="configs", config_name="eval")
def main(config: DictConfig) -> None:
    evaluate_from_config(config)


if __name__ == "__main__":
    main()
