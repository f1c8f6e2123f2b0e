"""One trainer for all systems: a task (`task.Task`) has the network and its loss, `trainer.train` does the rest."""
