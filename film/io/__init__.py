"""What the film command and `film.load` read and write: weights by name, and the plan of a run."""
