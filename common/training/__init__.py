"""One trainer for all systems: a task says what to optimise, this package does the rest.

`trainer.train` reads as the phases of any run. A *task* (see `task.Task`) owns the network and its loss; data is any
iterator of batches that can report and restore its position; everything else here knows neither pictures nor flow.
"""
