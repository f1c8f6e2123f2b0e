"""Files of users' data: stored images, tars, text, and the files that a path names.

The meaning of a record (a caption, a question, a condition image) is each system's own: `plugins/data`,
`reveal/sources`.
"""
