"""How good answers, captions and retrieved knowledge are, by the rules of the benchmarks that papers quote.

| question | modules | benchmarks |
| --- | --- | --- |
| is the answer right? | `vqa`, `aokvqa`, `evqa`, `infoseek` | VQA-v2, OK-VQA, A-OKVQA, Encyclopedic-VQA, InfoSeek |
| is the caption right? | `captions` (its words: `tokenizer`) | COCO, NoCaps |
| was the right knowledge found? | `retrieval` | recall, MRR, PRRecall, gate |

    from reveal import metrics
    metrics.vqa_accuracy("surfing", ["surfing"] * 3 + ["surf"] * 7)     # 0.9
    metrics.aokvqa.direct_answer(questions, predictions)
    metrics.cider_d(captions, references).mean
    metrics.recall_at_k(ranked, relevant, k=5)

Scores are shares, and CIDEr-D is on its own scale up to 10; papers print both times 100. `aokvqa`, `evqa` and
`infoseek` are modules: they have rules of their own. All is plain Python on text and ids. Names are imported when they
are first used (PEP 562).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.lazy import lazy

if TYPE_CHECKING:
    from reveal.metrics import aokvqa, evqa, infoseek
    from reveal.metrics.captions import SetScore, bleu, cider_d, nocaps, rouge_l
    from reveal.metrics.retrieval import (
        SourceScore,
        by_source,
        contains_answer,
        fraction_recall_at_k,
        gate_accuracy,
        mrr,
        pr_recall_at_k,
        recall_at_k,
    )
    from reveal.metrics.tokenizer import words
    from reveal.metrics.vqa import VqaScores, ten_answers, vqa_accuracy, vqa_scores

__all__ = [
    "SetScore",
    "SourceScore",
    "VqaScores",
    "aokvqa",
    "bleu",
    "by_source",
    "cider_d",
    "contains_answer",
    "evqa",
    "fraction_recall_at_k",
    "gate_accuracy",
    "infoseek",
    "mrr",
    "nocaps",
    "pr_recall_at_k",
    "recall_at_k",
    "rouge_l",
    "ten_answers",
    "vqa_accuracy",
    "vqa_scores",
    "words",
]

_HOMES = {
    "SetScore": "captions",
    "SourceScore": "retrieval",
    "VqaScores": "vqa",
    "bleu": "captions",
    "by_source": "retrieval",
    "cider_d": "captions",
    "contains_answer": "retrieval",
    "fraction_recall_at_k": "retrieval",
    "gate_accuracy": "retrieval",
    "mrr": "retrieval",
    "nocaps": "captions",
    "pr_recall_at_k": "retrieval",
    "recall_at_k": "retrieval",
    "rouge_l": "captions",
    "ten_answers": "vqa",
    "vqa_accuracy": "vqa",
    "vqa_scores": "vqa",
    "words": "tokenizer",
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
