# ruff: noqa: I001
# fmt: off
from . import aokvqa as aokvqa, captions as captions, evqa as evqa, infoseek as infoseek
from . import ptb_tokenizer as ptb_tokenizer, retrieval as retrieval, vqa as vqa
from .captions import SetScore as SetScore, bleu as bleu, cider_d as cider_d, nocaps as nocaps, rouge_l as rouge_l
from .ptb_tokenizer import words as words
from .retrieval import contains_answer as contains_answer, gate_accuracy as gate_accuracy, mrr as mrr
from .retrieval import pr_recall_at_k as pr_recall_at_k, recall_at_k as recall_at_k
from .vqa import ten_answers as ten_answers, vqa_accuracy as vqa_accuracy
