from . import (
    cli as cli,
)
from . import (
    clip as clip,
)
from . import (
    convolution as convolution,
)
from . import (
    data as data,
)
from . import (
    evaluation as evaluation,
)
from . import (
    flow as flow,
)
from . import (
    fusion as fusion,
)
from . import (
    io as io,
)
from . import (
    model as model,
)
from . import (
    porting as porting,
)
from . import (
    pyramid as pyramid,
)
from . import (
    recursion as recursion,
)
from . import (
    resample as resample,
)
from . import (
    row_tiling as row_tiling,
)
from . import (
    training as training,
)
from . import (
    visualization as visualization,
)
from . import (
    warp as warp,
)
from .io.weights import (
    load as load,
)
from .io.weights import (
    save_model as save_model,
)
from .model import (
    Film as Film,
)
from .model import (
    FilmConfig as FilmConfig,
)
from .model import (
    FilmOutput as FilmOutput,
)
from .recursion import (
    interpolate as interpolate,
)
