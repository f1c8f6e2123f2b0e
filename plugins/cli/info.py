"""`plugins info`: a base's networks and settings, or a plugin's, in a few lines, without reading weights, or a list of
the weights on this machine; `plugins verify` reads all weights."""

import dataclasses

from common.weights import at_hand
from common.weights.model_file import verify_weights
from common.weights.shipped import Shipped
from plugins.cli.commands import Info, Verify
from plugins.control.loading import is_network, open_files
from plugins.diffusion.io.base import WEIGHTS, BaseFiles, read_base
from plugins.diffusion.samplers.schedules import Schedule

ANY = Shipped(WEIGHTS, at_hand.CARD, "", "weights", "a folder of diffusers, a safetensors file")


def info(command: Info) -> None:
    """Runs the command; user errors are ValueError and OSError."""
    if command.list:
        command.write(*at_hand.listing(command.weights, WEIGHTS, "plugins"))
        return
    if command.weights is not None and is_network(path := ANY.find(command.weights)):
        network, component = open_files(path)
        kind, path, components = "plugin", path, {network.__name__: component}
        rows = {name: str(value) for name, value in component.config.to_json().items() if name[0] != "_"}
        rows = {network.__name__: f"{component.parameters:,} parameters, stored as {component.dtype}"} | rows
    else:
        base = read_base(command.weights, tokenizer=command.tokenizer, prediction=command.prediction, vae=command.vae)
        kind, path, components, rows = "base", base.path, base.components, describe(base)
    networks = {name: {"parameters": one.parameters, "dtype": one.dtype} for name, one in components.items()}
    text = "\n".join([str(path), *(f"{name:16}{line}" for name, line in rows.items())])
    command.write(text, {kind: str(path), "networks": networks, "about": rows})


def verify(command: Verify) -> None:
    """Raises as `verify_weights`."""
    files = list(verify_weights(ANY.find(command.weights)))
    command.write("\n".join(map(str, files)), {"files": [dataclasses.asdict(file) for file in files]})


def describe(files: BaseFiles) -> dict[str, str]:
    """A line for each network and setting."""
    base, unet, vae, schedule = files.base, files.base.unet, files.base.vae, files.base.schedule
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
    if isinstance(schedule, Schedule):
        levels = f"{schedule.beta_schedule} betas" + ", zero terminal SNR" * schedule.rescale_betas_zero_snr
    else:
        levels = f"shift {schedule.shift:g}"
    rows["predicts"] = f"{schedule.prediction_type}, {schedule.num_train_timesteps} timesteps, {levels}"
    rows["sampler"] = " ".join([base.sampler.name, *(f"{key}={value}" for key, value in base.sampler.options)])
    rows["images"] = f"{base.side}x{base.side}; other sides too, multiples of {base.unit}"
    return rows
