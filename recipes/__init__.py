"""How each shipped weight was made and each proof is run (README.md). Not in the wheel."""
