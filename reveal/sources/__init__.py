"""Knowledge and questions in the files that people have, one reader for each layout.

| `Items` reads | `path` | what becomes an item |
| --- | --- | --- |
| `jsonl` | a file of JSON lines | a line: a picture, texts, or both (`jsonl`, the general format) |
| `folder` | a folder | a picture, the text of the same name, or both |
| `wit` | WIT's tables, .tsv.gz | a row: a picture, its page and captions |
| `wit_tfds` | the same as tfds prepares it: TFRecord, ArrayRecord | a record, likewise |
| `cc12m` | CC12M's table, .tsv | a line: a picture and its caption |
| `webdataset` | tars of img2dataset | a sample: a picture and its caption |
| `wikidata` | triples, .tsv | a subject: all that is told about it |
| `wikidata_dump` | Wikidata's dump, .json.gz, .json.bz2 | an entity: its claims, and its picture |
| `vqa` | VQA-v2's questions, .json | a picture: its questions and answers |
| `coco` | COCO's captions, .json | a picture: its captions |
| `karpathy` | dataset_coco.json | a picture of train and restval: its captions |

| `Questions` reads | `path` | what becomes a question |
| --- | --- | --- |
| `jsonl` | a file of JSON lines | a line |
| `wit`, `wit_tfds`, `cc12m`, `webdataset` | as above | a picture to describe |
| `vqa` | VQA-v2's or OK-VQA's questions, .json | a question, ten answers |
| `aokvqa` | A-OKVQA's list, .json | a question, ten answers |
| `coco`, `nocaps` | captions, .json | a picture to describe |
| `karpathy` | dataset_coco.json | a picture to describe |
| `evqa` | Encyclopedic-VQA's rows, .csv | a question about one of its pictures |
| `infoseek` | InfoSeek's lines, .jsonl | a question |

    for item in Items("wikidata", "wikidata5m_all_triplet.txt", {"names": "wikidata5m_entity.txt"}): ...

The readers are plain generators of `reveal.memory.items.Item` and of `Question`, and may be called by themselves:
`wit.items(...)`, `coco.vqa_questions(...)`. `records` says what they share: what is left out, and the leak rule.
"""

from reveal.sources.records import Question, Skips
from reveal.sources.registry import Items, Questions

__all__ = ["Items", "Question", "Questions", "Skips"]
