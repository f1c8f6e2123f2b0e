"""How each shipped weight was made and each proof is run. Not in the wheel; imported by benchmarks and configs only."""
