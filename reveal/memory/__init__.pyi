from . import (
    builder as builder,
)
from . import (
    change as change,
)
from . import (
    engines as engines,
)
from . import (
    folder as folder,
)
from . import (
    items as items,
)
from . import (
    lock as lock,
)
from . import (
    manifest as manifest,
)
from . import (
    memory as memory,
)
from . import (
    shard_writer as shard_writer,
)
from . import (
    shards as shards,
)
from . import (
    snapshot as snapshot,
)
from . import (
    store as store,
)
from .builder import (
    Builder as Builder,
)
from .engines.engine import (
    Engine as Engine,
)
from .engines.engine import (
    Found as Found,
)
from .engines.engine import (
    Rows as Rows,
)
from .engines.exact_engine import (
    ExactEngine as ExactEngine,
)
from .engines.faiss_engine import (
    FaissEngine as FaissEngine,
)
from .engines.milvus_engine import (
    MilvusEngine as MilvusEngine,
)
from .items import (
    Item as Item,
)
from .items import (
    Knowledge as Knowledge,
)
from .manifest import (
    Layout as Layout,
)
from .manifest import (
    Manifest as Manifest,
)
from .manifest import (
    fingerprint as fingerprint,
)
from .memory import (
    Memory as Memory,
)
from .store import (
    Store as Store,
)
