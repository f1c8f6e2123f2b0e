from . import cli, conditions, control, data, diffusion, evaluation, metrics

__all__ = ["cli", "conditions", "control", "data", "diffusion", "evaluation", "metrics"]
