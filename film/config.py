"""The shape of a FILM network: published (`FilmConfig.paper`) or small (`FilmConfig.small`). Needs no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from common.checked import Checked, NotNegative, Positive, whole
from common.nn.json_config import Layers

MOST_LEVELS = 16  # of a pyramid; 16 pad a side to 32,768 pixels, more than any use
LEVEL = 3  # of `matching`
MOST_TIMES = 16  # halvings of the gap between two frames: 65,535 frames, more than 8-bit images can tell apart


@dataclasses.dataclass(frozen=True)
class FilmConfig(Checked):
    """The network's shape; ValueError lists all rules that it breaks."""

    pyramid_levels: Annotated[int, whole(most=MOST_LEVELS)] = 7  # of images, features, flow; sets the largest motion
    fusion_pyramid_levels: int = 5  # finest levels that the decoder sees; at most `pyramid_levels`
    specialized_levels: int = 3  # finest levels with a flow predictor of their own; the coarser ones share one
    sub_levels: int = 4  # depth of the encoder; specialized_levels + 1 gives all shared levels equal channels
    flow_convs: Sequence[Layers] = (3, 3, 3, 3)  # 3x3 convolutions per predictor, finest first, the shared one last
    flow_filters: Sequence[Annotated[int, whole(2)]] = (32, 64, 128, 256)  # channels per predictor, in the same order
    filters: Positive = 64  # channels of the encoder's first stage; doubles from stage to stage
    correlation_radius: Sequence[NotNegative] = ()  # px, per predictor (`film.ops.correlation`); 0: none; empty: no
    bilateral: bool = False  # flow on the grid of the middle frame (`FlowEstimator.bilateral`), not frame to frame
    blend: bool = False  # the decoder mixes the warped frames (`film.fusion.blend`); else it outputs colours
    coverage: bool = False  # the decoder sees how often a flow uses each place (`film.fusion`); needs `bilateral`
    matching: bool = False  # flow in doubt is searched for in the whole frames (`film.matching`); needs `bilateral`
    sided_levels: int = 0  # finest levels with a residual flow to either frame; needs `bilateral`, and no `matching`

    def rules(self):
        predictors = self.specialized_levels + 1
        yield 2 <= self.fusion_pyramid_levels <= self.pyramid_levels, "2 <= fusion_pyramid_levels <= pyramid_levels"
        yield 1 <= self.specialized_levels < self.pyramid_levels, "1 <= specialized_levels < pyramid_levels"
        yield 1 <= self.sub_levels <= predictors, "1 <= sub_levels <= specialized_levels + 1"
        yield len(self.flow_convs) == predictors, "flow_convs holds specialized_levels + 1 numbers"
        yield len(self.flow_filters) == predictors, "flow_filters holds specialized_levels + 1 numbers"
        radii = len(self.correlation_radius) in (0, predictors)
        yield radii, "correlation_radius holds specialized_levels + 1 numbers, or none"
        yield 0 <= self.sided_levels <= self.specialized_levels, "0 <= sided_levels <= specialized_levels"
        added = self.coverage or self.sided_levels or self.matching
        yield self.bilateral or not added, "coverage, sided_levels and matching need bilateral"
        deep = self.fusion_pyramid_levels > LEVEL
        yield deep or not self.matching, f"matching needs more than {LEVEL} fusion_pyramid_levels"
        yield self.blend or not self.matching, "matching needs blend"
        yield not (self.matching and self.sided_levels), "matching has one flow for both frames: sided_levels is 0"

    @classmethod
    def paper(cls) -> FilmConfig:
        """The published network: 34,436,667 parameters."""
        return cls()

    @classmethod
    def small(cls, **changes: Any) -> FilmConfig:
        """A quarter of the width, bilateral flow, a blend and matching: 2.3 M parameters, a fifteenth of the
        arithmetic. `changes` replace fields."""
        fields: dict[str, Any] = dict(
            flow_filters=(12, 24, 48, 64),
            filters=16,
            correlation_radius=(1, 1, 2, 3),
            bilateral=True,
            blend=True,
            matching=True,
        )
        return cls(**fields | changes)

    def feature_channels(self, level: int) -> int:
        """Channels of feature level `level` (`film.pyramid`)."""
        return sum(self.filters << stage for stage in range(min(level + 1, self.sub_levels)))

    @property
    def smallest_side(self) -> int:
        """Shorter sides are padded to this many pixels: one of the coarsest level, or two if it is warped."""
        return 2 ** (self.pyramid_levels - 1 + (self.fusion_pyramid_levels == self.pyramid_levels))
