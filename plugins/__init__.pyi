from . import (
    cli as cli,
)
from . import (
    conditions as conditions,
)
from . import (
    control as control,
)
from . import (
    data as data,
)
from . import (
    diffusion as diffusion,
)
from . import (
    evaluation as evaluation,
)
from . import (
    metrics as metrics,
)
