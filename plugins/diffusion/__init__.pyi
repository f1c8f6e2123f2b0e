from . import (
    batching as batching,
)
from . import (
    compiled as compiled,
)
from . import (
    guidance as guidance,
)
from . import (
    io as io,
)
from . import (
    networks as networks,
)
from . import (
    pipeline as pipeline,
)
from . import (
    request as request,
)
from . import (
    samplers as samplers,
)
from . import (
    steering as steering,
)
from . import (
    training as training,
)
from .io.component_saving import (
    save_component as save_component,
)
from .io.components import (
    load_text_encoder as load_text_encoder,
)
from .io.components import (
    load_tokenizer as load_tokenizer,
)
from .io.components import (
    load_unet as load_unet,
)
from .io.components import (
    load_vae as load_vae,
)
from .io.folder import (
    load as load,
)
from .io.folder import (
    read_base as read_base,
)
from .io.lora import (
    Lora as Lora,
)
from .io.lora import (
    merge as merge,
)
from .io.tokenizer import (
    Tokenizer as Tokenizer,
)
from .networks.text_encoder import (
    TextConfig as TextConfig,
)
from .networks.text_encoder import (
    TextEncoder as TextEncoder,
)
from .networks.text_encoder import (
    TextStates as TextStates,
)
from .networks.unet import (
    UNet as UNet,
)
from .networks.unet import (
    UNetConfig as UNetConfig,
)
from .networks.vae import (
    AutoencoderKL as AutoencoderKL,
)
from .networks.vae import (
    Posterior as Posterior,
)
from .networks.vae import (
    VAEConfig as VAEConfig,
)
from .pipeline import (
    Pipeline as Pipeline,
)
