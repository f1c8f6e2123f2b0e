"""Metrics of answers, captions and retrieval, by the rules of the benchmarks that papers quote.

| what is scored | modules | benchmarks |
| --- | --- | --- |
| answers | `vqa`, `aokvqa`, `evqa`, `infoseek` | VQA-v2, OK-VQA, A-OKVQA, Encyclopedic-VQA, InfoSeek |
| captions | `captions` (tokens: `ptb_tokenizer`) | COCO, NoCaps |
| retrieval | `retrieval` | recall, MRR, PRRecall, gate |

    from reveal import metrics
    metrics.vqa_accuracy("surfing", ["surfing"] * 3 + ["surf"] * 7)     # 0.9
    metrics.aokvqa.direct_answer(questions, predictions)
    metrics.cider_d(captions, references).mean
    metrics.recall_at_k(ranked, relevant, k=5)

Scores are shares, and CIDEr-D has its own scale up to 10; papers print both times 100. The published evaluators are
scripts and no packages, and COCO's needs Java, so their rules are implemented here. Names are imported lazily.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
