"""`plugins info`: a base's networks and settings in a few lines, without reading its weights, or a list of what is at
hand; `plugins verify` reads all weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from common.weights import at_hand
from common.weights.model_file import verify_weights
from plugins.cli.commands import Info, Verify
from plugins.diffusion.io.base import WEIGHTS, BaseFiles, read_base
from plugins.diffusion.samplers.schedules import FlowSchedule, Schedule


def info(command: Info) -> None:
    """Runs the command; user errors are ValueError and OSError."""
    if command.list:
        if command.base is not None:
            raise ValueError("--list is of all that is at hand: leave out the base")
        rows = [*at_hand.shipped(sorted(WEIGHTS.iterdir())), *at_hand.cached("plugins")]
        command.write(at_hand.table(rows), {"at_hand": [vars(row) for row in rows]})
        return
    files = read_base(command.base, tokenizer=command.tokenizer, prediction=command.prediction, vae=command.vae)
    rows = describe(files)
    networks = {kind: {"parameters": one.parameters, "dtype": one.dtype} for kind, one in files.components.items()}
    text = "\n".join([str(files.path), *(f"{name:14}{line}" for name, line in rows.items())])
    command.write(text, {"base": str(files.path), "networks": networks, "about": rows})


def verify(command: Verify) -> None:
    """Raises as `verify_weights`."""
    shipped = WEIGHTS / command.weights
    files = list(verify_weights(shipped if shipped.is_dir() else Path(command.weights)))
    command.write("\n".join(map(str, files)), {"files": [dataclasses.asdict(file) for file in files]})


def describe(files: BaseFiles) -> dict[str, str]:
    """A line for each network and setting."""
    base, unet, vae = files.base, files.base.unet, files.base.vae
    shapes = {kind: f"{config.num_hidden_layers} layers of {config.hidden_size}" for kind, config, _ in base.texts}
    widths = "-".join(map(str, unet.block_out_channels))
    shapes["unet"] = f"{widths}, {unet.in_channels} channels, text states of {unet.cross_attention_dim}"
    if vae is not None:
        widths = "-".join(map(str, vae.block_out_channels))
        shapes["vae"] = f"{widths}, {vae.latent_channels} channels at 1/{base.unit} of the side"
    rows = {
        name: f"{network.parameters:,} parameters, stored as {network.dtype}, {shapes[name]}"
        for name, network in files.components.items()
    }
    if vae is None:
        rows["vae"] = "none: the unet works on pixels"
    rows["tokenizer"] = f"{len(base.texts[0][2].vocab):,} tokens; prompts of {base.length - 2}"
    rows["makes"] = base.task + ", with the guidance scale as an input" * base.distilled
    rows["predicts"] = _prediction(base.schedule)
    rows["sampler"] = " ".join([base.sampler.name, *(f"{key}={value}" for key, value in base.sampler.options)])
    rows["images"] = f"{base.side}x{base.side}; other sides too, multiples of {base.unit}"
    return rows


def _prediction(schedule: Schedule | FlowSchedule) -> str:
    if not isinstance(schedule, Schedule):
        return f"flow, {schedule.num_train_timesteps} timesteps, shift {schedule.shift:g}"
    zero = ", zero terminal SNR" if schedule.rescale_betas_zero_snr else ""
    return f"{schedule.prediction_type}, {schedule.num_train_timesteps} timesteps, {schedule.beta_schedule} betas{zero}"
