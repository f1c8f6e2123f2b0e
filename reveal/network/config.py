"""The shape of a REVEAL network, and the published sizes.

The reference puts a REVEAL together from two published networks: a ViT of big_vision for pictures and a T5 1.1 for
text (`scenic/projects/knowledge_visual_language/configs`). T5's encoder is cut in two, the upper `fusion_layers` of it
become the fusion encoder, and the three heads are stacks of the same depth beside them:

| preset | T5 1.1 | ViT | parameters | the paper calls it |
| --- | --- | --- | --- | --- |
| `base` | base | B/16 | 475,978,757 | Base, 0.4 B |
| `large` | large | L/16 | 1,429,956,101 | Large, 1.4 B |
| `full` | large | g/14 | 2,138,249,349 | REVEAL, 2.1 B |
| `tiny` | | | 1,061,894 | (ours: trains in minutes on a processor) |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

PRIORS = ("multiply", "logits", "off")  # what a retrieval score may do to attention: `fusion.py`
PAD = 0  # the number of the token that fills rows up; nothing ever looks at it


def check(config: Any, rules: Callable[[], list[tuple[bool, str]]]) -> None:
    """Raises one ValueError that lists the fields that are no positive whole numbers, or else the broken rules."""
    fields = [field.name for field in dataclasses.fields(config) if field.type in (int, "int")]
    wrong = [name for name in fields if not _counts(getattr(config, name))]
    broken = [f"{name} is positive, and whole" for name in wrong] or [rule for holds, rule in rules() if not holds]
    if broken:
        raise ValueError(f"{config} breaks: {'; '.join(broken)}")


def _counts(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0


@dataclasses.dataclass(frozen=True)
class VitConfig:
    """The picture encoder.

    Attributes:
      width, depth, heads: of the states, number of layers, heads of each.
      mlp: width inside each layer.
      patch: side of the square that becomes one token, in pixels.
      image_size: side of the square picture, in pixels; fixed by the position table.
    """

    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    patch: int = 16
    image_size: int = 224

    def __post_init__(self):
        check(self, self._rules)

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (self.width % self.heads == 0, "heads divides width"),
            (self.image_size % self.patch == 0, "patch divides image_size"),
        ]

    @property
    def tokens(self) -> int:
        """Patches of a picture."""
        return (self.image_size // self.patch) ** 2


@dataclasses.dataclass(frozen=True)
class RevealConfig:
    """Architecture. Raises ValueError in one line for numbers that make no network.

    Attributes:
      vit: the picture encoder.
      vocab_size: tokens.
      width, heads, head_dim, mlp: of every T5 layer; `heads * head_dim` need not be `width`.
      encoder_layers: of T5's encoder; all but `fusion_layers` of them read text.
      decoder_layers: of the generator.
      fusion_layers: of the fusion encoder, and of the query head, the key head and the value head each.
      key_dim: of queries and keys.
      value_tokens: c, the tokens that a memory item is compressed to.
      sources: of knowledge, each with a number in the source gate.
      prior: what a retrieval score does in the fusion, one of `PRIORS`.
      bos, eos: the tokens that a generated text begins and ends with.
      tied: a token is written with the vector that it is read with, as in T5 1.0, over sqrt(width). A token that is
        seldom an answer is then soon written; T5 1.1 and the published networks learn vectors of their own for it.
    """

    vit: VitConfig = VitConfig()
    vocab_size: int = 32128
    width: int = 768
    heads: int = 12
    head_dim: int = 64
    mlp: int = 2048
    encoder_layers: int = 12
    decoder_layers: int = 12
    fusion_layers: int = 6
    key_dim: int = 512
    value_tokens: int = 32
    sources: int = 3
    prior: str = "multiply"
    bos: int = 32001
    eos: int = 1
    tied: bool = False

    def __post_init__(self):
        check(self, self._rules)

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (self.fusion_layers < self.encoder_layers, "fusion_layers < encoder_layers"),
            (self.prior in PRIORS, f"prior is one of {', '.join(PRIORS)}"),
            (max(self.bos, self.eos) < self.vocab_size, "bos and eos are below vocab_size"),
        ]

    @property
    def text_layers(self) -> int:
        """T5's lower layers."""
        return self.encoder_layers - self.fusion_layers

    @classmethod
    def tiny(
        cls, vocab_size: int = 512, sources: int = 4, value_tokens: int = 4, prior: str = "multiply"
    ) -> RevealConfig:
        """For small worlds of 32-pixel pictures: 1,061,894 parameters. Texts begin with token 2."""
        vit = VitConfig(width=128, depth=2, heads=4, mlp=512, patch=8, image_size=32)
        t5 = vocab_size, 64, 4, 16, 128, 4, 2
        rest = {"value_tokens": value_tokens, "sources": sources, "prior": prior}
        return cls(vit, *t5, fusion_layers=2, key_dim=64, bos=2, **rest)

    @classmethod
    def base(cls) -> RevealConfig:
        """T5 1.1 base and ViT B/16: 475,978,757 parameters."""
        return cls()

    @classmethod
    def large(cls, **changes: Any) -> RevealConfig:
        """T5 1.1 large and ViT L/16: 1,429,956,101 parameters. `changes` are fields that are to differ."""
        return cls._t5_large(VitConfig(1024, 24, 16, 4096), **changes)

    @classmethod
    def full(cls, **changes: Any) -> RevealConfig:
        """T5 1.1 large and ViT g/14: 2,138,249,349 parameters. `changes` as for `large`."""
        return cls._t5_large(VitConfig(1408, 40, 16, 6144, patch=14), **changes)

    @classmethod
    def _t5_large(cls, vit: VitConfig, **changes: Any) -> RevealConfig:
        t5 = dict(width=1024, heads=16, mlp=2816, encoder_layers=24, decoder_layers=24, fusion_layers=8)
        return cls(**dict(vit=vit, **t5) | changes)

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> RevealConfig:
        """The inverse of `dataclasses.asdict`, as a weights file holds it. Raises ValueError for an unknown field."""
        fields, vit = _known(cls, mapping), VitConfig(**_known(VitConfig, mapping.get("vit", {})))
        return cls(**{**fields, "vit": vit})


def _known(cls: Any, mapping: Mapping[str, Any]) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls)]
    unknown = [name for name in mapping if name not in names]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}; its fields are {', '.join(names)}")
    return dict(mapping)
