"""`reveal convert`: published weights -> a weights file of ours, from which training starts."""

from pathlib import Path

from common.io.files import check_output_file
from reveal.cli import commands


def convert(command: commands.Convert) -> None:
    """Raises as `published.read_published`; FileExistsError without `overwrite`."""
    if len(command.paths) < 2:
        raise ValueError("give what to read and then the file to write: reveal convert T5 VIT start.safetensors")
    *sources, target = command.paths
    if Path(target).suffix != ".safetensors":
        raise ValueError(f"{target}: the file to write comes last, and its name ends in .safetensors")
    check_output_file(target, command.overwrite)

    from common.runtime import setup

    setup()
    import jax

    from common.nn.init import split
    from reveal.network import published, weights

    parts = published.read_published(sources)
    if parts.reveal is not None:
        config, params, drawn = parts.reveal.config, split(parts.reveal)[1], []
    elif parts.t5 is None:
        raise ValueError(f"{sources[0]} has no T5, which texts need: reveal convert T5 {sources[0]} {target}")
    else:
        changes = {"sources": command.sources, "key_dim": command.key_dim, "value_tokens": command.value_tokens}
        changes |= {} if command.fusion_layers is None else {"fusion_layers": command.fusion_layers}
        config = published.config_of(parts.t5, parts.vit, **changes)
        params = published.assemble(config, parts.t5, parts.vit, command.seed)
        drawn = published.drawn_parts(parts.t5, parts.vit)
    made_of = [Path(source).name for source in sources]
    about = {"made_of": made_of, "drawn": drawn}
    weights.save(target, params, config, metadata=about, dtype=command.dtype, overwrite=command.overwrite)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    text = f"{target}: {count:,} parameters from {', '.join(made_of)}"
    text += f"\ndrawn at random: {', '.join(drawn)}" if drawn else ""
    command.write(text, {"weights": target, "parameters": count, **about})
