"""The two training stages of REVEAL: warm start and joint training with retrieval."""
