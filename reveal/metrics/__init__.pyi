from . import (
    aokvqa as aokvqa,
)
from . import (
    captions as captions,
)
from . import (
    evqa as evqa,
)
from . import (
    infoseek as infoseek,
)
from . import (
    ptb_tokenizer as ptb_tokenizer,
)
from . import (
    retrieval as retrieval,
)
from . import (
    vqa as vqa,
)
from .captions import (
    SetScore as SetScore,
)
from .captions import (
    bleu as bleu,
)
from .captions import (
    cider_d as cider_d,
)
from .captions import (
    nocaps as nocaps,
)
from .captions import (
    rouge_l as rouge_l,
)
from .ptb_tokenizer import (
    words as words,
)
from .retrieval import (
    SourceScore as SourceScore,
)
from .retrieval import (
    by_source as by_source,
)
from .retrieval import (
    contains_answer as contains_answer,
)
from .retrieval import (
    fraction_recall_at_k as fraction_recall_at_k,
)
from .retrieval import (
    gate_accuracy as gate_accuracy,
)
from .retrieval import (
    mrr as mrr,
)
from .retrieval import (
    pr_recall_at_k as pr_recall_at_k,
)
from .retrieval import (
    recall_at_k as recall_at_k,
)
from .vqa import (
    VqaScores as VqaScores,
)
from .vqa import (
    ten_answers as ten_answers,
)
from .vqa import (
    vqa_accuracy as vqa_accuracy,
)
from .vqa import (
    vqa_scores as vqa_scores,
)
