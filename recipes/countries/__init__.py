"""Flags and countries: a small real encyclopedia, with sixteen times as many invented countries for training.

Four sources know about 250 countries and territories: `graph` has triples, `passages` a flag with a name and facts,
`captions` a flag with one fact, `vqa` a flag with a question and its answer. A question about a flag takes one hop or
two: no item has both a flag and a currency, so the name is retrieved first (`phrases.py`). A fifth of the countries is
held out. Training also reads 4,000 invented countries (`drawing.py`, `invented.py`); evaluation never sees those.

README.md has the commands and results.
"""
