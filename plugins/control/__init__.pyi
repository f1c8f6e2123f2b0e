from . import (
    contract as contract,
)
from . import (
    controlnet as controlnet,
)
from . import (
    controlnet_config as controlnet_config,
)
from . import (
    convolutions as convolutions,
)
from . import (
    export as export,
)
from . import (
    fitting as fitting,
)
from . import (
    loading as loading,
)
from . import (
    mediapipe as mediapipe,
)
from . import (
    mediapipe_config as mediapipe_config,
)
from . import (
    names as names,
)
from . import (
    onnx_graph as onnx_graph,
)
from . import (
    plug_and_play as plug_and_play,
)
from . import (
    pretrained as pretrained,
)
from . import (
    t2i_adapter as t2i_adapter,
)
from . import (
    t2i_adapter_config as t2i_adapter_config,
)
from . import (
    training as training,
)
from .contract import (
    Control as Control,
)
from .contract import (
    ControlNetwork as ControlNetwork,
)
from .contract import (
    guess_levels as guess_levels,
)
from .controlnet import (
    ControlNet as ControlNet,
)
from .controlnet_config import (
    ControlNetConfig as ControlNetConfig,
)
from .loading import (
    load as load,
)
from .loading import (
    save as save,
)
from .mediapipe import (
    MediaPipePlugin as MediaPipePlugin,
)
from .mediapipe_config import (
    MediaPipeConfig as MediaPipeConfig,
)
from .plug_and_play import (
    PlugAndPlay as PlugAndPlay,
)
from .t2i_adapter import (
    T2IAdapter as T2IAdapter,
)
from .t2i_adapter_config import (
    T2IAdapterConfig as T2IAdapterConfig,
)
