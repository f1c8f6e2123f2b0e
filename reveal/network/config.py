"""Architecture of a REVEAL network, and the published sizes.

The reference joins two published networks (`scenic/projects/knowledge_visual_language/configs`): a big_vision ViT for
images and a T5 1.1 for text. T5's encoder is split: its upper `fusion_layers` layers become the fusion encoder, and the
query, key and value heads are stacks of the same depth.

| preset | T5 1.1 | ViT | parameters | the paper calls it |
| --- | --- | --- | --- | --- |
| `base` | base | B/16 | 475,978,757 | Base, 0.4 B |
| `large` | large | L/16 | 1,429,956,101 | Large, 1.4 B |
| `full` | large | g/14 | 2,138,249,349 | REVEAL, 2.1 B |
| `tiny` | | | 1,061,894 | (ours: trains in minutes on a CPU) |
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from common.checked import Checked, Positive, real
from common.nn.json_config import Layers

Prior = Literal["multiply", "logits", "off"]  # how the retrieval score enters attention (`fusion.py`)
PAD = 0  # token id of padding, masked everywhere
T5_LARGE = dict(width=1024, heads=16, mlp=2816, encoder_layers=24, decoder_layers=24, fusion_layers=8)


@dataclasses.dataclass(frozen=True)
class VitConfig(Checked):
    width: Positive = 768
    depth: Layers = 12
    heads: Positive = 12
    mlp: Positive = 3072  # hidden width
    patch: Positive = 16  # side, in pixels
    image_size: Positive = 224  # side, in pixels; fixed by the position table
    # Of other published ViTs (`published_vit.py`), whose tokens are used without the class token:
    activation: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"  # of the mlp
    norm_eps: float = 1e-6
    class_token: bool = False  # that the patches attend to
    pre_norm: bool = False  # a layer norm before the first layer

    def rules(self):
        yield self.width % self.heads == 0, "heads divides width"
        yield self.image_size % self.patch == 0, "patch divides image_size"

    @property
    def tokens(self) -> int:
        return (self.image_size // self.patch) ** 2


@dataclasses.dataclass(frozen=True)
class TowerConfig(Checked):
    width: Positive = 96  # channels of the last stage; those before have half and a quarter
    depth: Layers = 1  # residual blocks of each of both stages
    key_dim: Positive = 64  # of its embeddings
    weight: Annotated[float | int, real(above=0)] = 0.5  # of its cosine in a score
    heads_weight: Annotated[float | int, real(above=0)] | None = None  # of the heads' cosine; None: 1 - weight

    def rules(self):
        yield self.width % 4 == 0, "4 divides width"
        yield self.heads_weight is not None or self.weight < 1, "weight < 1 without heads_weight"

    @property
    def weights(self) -> tuple[float | int, float | int]:
        """Of the heads' cosine and of the tower's in a score."""
        return 1 - self.weight if self.heads_weight is None else self.heads_weight, self.weight


@dataclasses.dataclass(frozen=True)
class RevealConfig(Checked):
    vit: VitConfig = VitConfig()
    vocab_size: Positive = 32128
    width: Positive = 768  # of every T5 layer, as are the next three; heads * head_dim need not be width
    heads: Positive = 12
    head_dim: Positive = 64
    mlp: Positive = 2048
    encoder_layers: Layers = 12  # of T5's encoder; all but fusion_layers of them encode text
    decoder_layers: Layers = 12  # of the generator
    fusion_layers: Layers = 6  # of the fusion encoder, and of each of the query, key and value heads
    key_dim: Positive = 512  # of the heads' embeddings; queries and keys have those of a tower too (`vector_dim`)
    value_tokens: Positive = 32  # c, the tokens that the value head compresses an item to
    sources: Positive = 3  # number of knowledge sources of the source gate
    prior: Prior = "multiply"  # how the retrieval score enters the fusion
    bos: Positive = 32001  # first and last token of a generated text
    eos: Positive = 1
    # Output logits use the input embedding, over sqrt(width), as in T5 1.0: this helps to generate tokens that are
    # rarely answers. T5 1.1 and the published networks have a separate output table.
    tied: bool = False
    tower: TowerConfig | None = None  # None: the heads alone make queries and keys, as in the paper

    def rules(self):
        yield self.fusion_layers < self.encoder_layers, "fusion_layers < encoder_layers"
        yield max(self.bos, self.eos) < self.vocab_size, "bos and eos are below vocab_size"

    @property
    def text_layers(self) -> int:
        """T5's lower layers, the text encoder."""
        return self.encoder_layers - self.fusion_layers

    @property
    def vector_dim(self) -> int:
        """Length of queries and keys: the heads' embedding, and the tower's where there is one."""
        return self.key_dim + (0 if self.tower is None else self.tower.key_dim)

    @classmethod
    def tiny(
        cls, vocab_size: int = 512, sources: int = 4, value_tokens: int = 4, prior: str = "multiply"
    ) -> "RevealConfig":
        """For small worlds of 32-pixel images: 1,061,894 parameters. Texts begin with token 2."""
        vit = VitConfig(width=128, depth=2, heads=4, mlp=512, patch=8, image_size=32)
        t5: Any = dict(width=64, heads=4, head_dim=16, mlp=128, encoder_layers=4, decoder_layers=2, fusion_layers=2)
        memory: Any = dict(key_dim=64, value_tokens=value_tokens, sources=sources, prior=prior)
        return cls(vit, vocab_size, **t5, **memory, bos=2)

    @classmethod
    def base(cls) -> "RevealConfig":
        """T5 1.1 base and ViT B/16: 475,978,757 parameters."""
        return cls()

    @classmethod
    def large(cls, **changes: Any) -> "RevealConfig":
        """T5 1.1 large and ViT L/16: 1,429,956,101 parameters. `changes` override fields."""
        return cls(**{"vit": VitConfig(1024, 24, 16, 4096), **T5_LARGE, **changes})

    @classmethod
    def full(cls, **changes: Any) -> "RevealConfig":
        """T5 1.1 large and ViT g/14: 2,138,249,349 parameters. `changes` override fields."""
        return cls(**{"vit": VitConfig(1408, 40, 16, 6144, patch=14), **T5_LARGE, **changes})

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> "RevealConfig":
        """The inverse of `dataclasses.asdict`. Raises ValueError for an unknown field."""
        parts = {name: kind for name, kind in (("vit", VitConfig), ("tower", TowerConfig)) if mapping.get(name)}
        try:
            return cls(**{**mapping, **{name: kind(**mapping[name]) for name, kind in parts.items()}})
        except TypeError as error:
            raise ValueError(f"no config of a REVEAL network: {error}") from error
