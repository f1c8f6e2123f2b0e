"""Knowledge and questions in published formats, one reader for each format.

| `Items` reads | `path` | an item is |
| --- | --- | --- |
| `jsonl` | a file of JSON lines | a line: an image, texts, or both (`jsonl`, the general format) |
| `folder` | a folder | an image, the text of the same name, or both |
| `wit` | WIT's tables, .tsv.gz | a row: an image, its page and captions |
| `wit_tfds` | the same as tfds prepares it: TFRecord, ArrayRecord | a record, likewise |
| `cc12m` | CC12M's table, .tsv | a line: an image and its caption |
| `webdataset` | tars of img2dataset | a sample: an image and its caption |
| `wikidata` | triples, .tsv | a subject: all facts about it |
| `wikidata_dump` | Wikidata's dump, .json.gz, .json.bz2 | an entity: its claims, and its image |
| `vqa` | VQA-v2's questions, .json | an image: its questions and answers |
| `coco` | COCO's captions, .json | an image: its captions |
| `karpathy` | dataset_coco.json | an image of train and restval: its captions |

| `Questions` reads | `path` | a question is |
| --- | --- | --- |
| `jsonl` | a file of JSON lines | a line |
| `wit`, `wit_tfds`, `cc12m`, `webdataset` | as above | an image to describe |
| `vqa` | VQA-v2's or OK-VQA's questions, .json | a question, ten answers |
| `aokvqa` | A-OKVQA's list, .json | a question, ten answers |
| `coco`, `nocaps` | captions, .json | an image to describe |
| `karpathy` | dataset_coco.json | an image to describe |
| `evqa` | Encyclopedic-VQA's rows, .csv | a question about one of its images |
| `infoseek` | InfoSeek's lines, .jsonl | a question |

    for item in Items("wikidata", "wikidata5m_all_triplet.txt", {"names": "wikidata5m_entity.txt"}): ...

Readers are generators of records; `records` turns those into items and questions. A further format is a generator and a
line in `registry`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
