from . import cli, conditions, control, data, diffusion, evaluation, formats, metrics

__all__ = ["cli", "conditions", "control", "data", "diffusion", "evaluation", "formats", "metrics"]
