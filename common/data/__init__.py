"""Files of users' data: stored images, tars, text, and the files that a path names.

| module | subject |
| --- | --- |
| `stored` | the content of a file, on its own or inside a tar, read and decoded on demand |
| `files` | the files that a path, a folder or a pattern names |
| `tar` | members of an uncompressed tar in WebDataset's layout |
| `text` | lines of UTF-8, packed or plain, and tolerant JSON |
| `arrays` | .npy and .npz without pickles |

What a record means (a caption, a question, a condition image) is each system's own: `plugins/data`, `reveal/sources`.
"""
