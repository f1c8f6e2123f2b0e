"""Pictures of your own, with captions and condition pictures: every layout that people have, behind one contract.

    from plugins.data import open_source

    source = open_source("my/pictures")
    source[0].image, source[0].captions, source[0].conditions["canny"]     # decoded when asked for

| what is given                          | layout                                                                     |
| -------------------------------------- | -------------------------------------------------------------------------- |
| a folder                               | images/1.jpg, captions/1.txt, conditions/canny/1.png   (`folder`)          |
| a folder of pictures                   | 1.jpg, 1.txt beside it                                 (`folder`)          |
| x.jsonl                                | {"image", "caption", "conditions": {"canny": path}}    (`jsonl`)           |
| metadata.jsonl, or its folder          | {"file_name", "text", "conditioning_image_file_name"}  (`jsonl`)           |
| prompt.json, or its folder             | {"source", "target", "prompt"}, of fill50k             (`jsonl`)           |
| x.tar, a folder of them, x-{00..99}.tar | 1.jpg, 1.txt or 1.json, 1.canny.png                   (`webdataset`)      |
| tfds:NAME, a folder that tfds prepared | features by name                                       (`tfds_source`)     |

`record` says what a record is, and `plugins.data.own_batches` makes batches of them.
"""

from plugins.data.folder_source import FolderPictures
from plugins.data.jsonl_source import JsonlPictures
from plugins.data.opening import open_source
from plugins.data.record import Record, Source
from plugins.data.tfds_source import TfdsPictures
from plugins.data.webdataset_source import WebDatasetPictures

__all__ = [
    "FolderPictures",
    "JsonlPictures",
    "Record",
    "Source",
    "TfdsPictures",
    "WebDatasetPictures",
    "open_source",
]
