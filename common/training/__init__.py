"""One trainer for all systems: a task (`task.Task`) has the network and its loss, `trainer.train` does the rest.

`data` is any iterator of batches that can report and restore its position.
"""
