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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
