"""`plugins info`: what a base is, in a few lines, without its weights."""

from __future__ import annotations

from common import terminal
from plugins.cli.commands import Info
from plugins.diffusion.io.base import Base
from plugins.diffusion.io.folder import BaseFiles, read_base
from plugins.diffusion.samplers.schedules import Schedule


def info(command: Info) -> None:
    """Carries out the command. Raises ValueError and OSError in one line."""
    terminal.say(about(read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction)))


def about(files: BaseFiles) -> str:
    """One line for each component, and for what it makes."""
    base = files.base
    rows = {
        kind: f"{part.parameters:,} parameters, stored as {part.dtype}, {_shape(kind, base)}"
        for kind, part in files.components.items()
    }
    if base.vae is None:
        rows["vae"] = "none: the unet works on pixels"
    rows["tokenizer"] = f"{len(base.tokenizer.vocab):,} tokens; prompts of {base.length - 2}"
    rows["predicts"] = _prediction(base)
    rows["sampler"] = " ".join([base.sampler.name, *(f"{key}={value}" for key, value in base.sampler.options)])
    rows["pictures"] = f"{base.side}x{base.side}; other sides too, multiples of {base.unit}"
    return "\n".join([str(files.path), *(f"{name:14}{text}" for name, text in rows.items())])


def _shape(kind: str, base: Base) -> str:
    if kind == "unet":
        unet = base.unet
        widths = "-".join(map(str, unet.block_out_channels))
        return f"{widths}, {unet.in_channels} channels, text states of {unet.cross_attention_dim}"
    if kind == "vae":
        assert base.vae is not None
        widths = "-".join(map(str, base.vae.block_out_channels))
        return f"{widths}, {base.vae.latent_channels} channels at 1/{base.unit} of the side"
    text = base.text_encoder
    return f"{text.num_hidden_layers} layers of {text.hidden_size}"


def _prediction(base: Base) -> str:
    schedule = base.schedule
    if not isinstance(schedule, Schedule):
        return f"flow, {schedule.num_train_timesteps} timesteps, shift {schedule.shift:g}"
    zero = ", zero terminal SNR" if schedule.rescale_betas_zero_snr else ""
    return f"{schedule.prediction_type}, {schedule.num_train_timesteps} timesteps, {schedule.beta_schedule} betas{zero}"
