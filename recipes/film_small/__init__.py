"""The recipe of film-small and film-small-style: data, flow pretraining, held-out sets (README.md)."""
