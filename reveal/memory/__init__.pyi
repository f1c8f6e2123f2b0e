# ruff: noqa: I001
# fmt: off
from . import engines as engines
from .builder import Builder as Builder
from .engines.engine import Engine as Engine, Rows as Rows, SearchResult as SearchResult
from .engines.exact import ExactEngine as ExactEngine, LateInteractionEngine as LateInteractionEngine
from .engines.faiss_engine import FaissEngine as FaissEngine
from .engines.milvus_engine import MilvusEngine as MilvusEngine
from .items import Item as Item
from .manifest import Layout as Layout, Manifest as Manifest, fingerprint as fingerprint
from .memory import Memory as Memory
