"""Files of users' data: stored images, tars, text, and the files that a path names.

What a record means (a caption, a question, a condition image) is each system's own: `plugins/data`, `reveal/sources`.
"""
