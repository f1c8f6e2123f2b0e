"""Flags and countries: a real encyclopedia that fits into one file, and ten times as many countries that do not exist.

Four sources know about 250 countries and territories: `graph` has triples in words, `passages` a flag with a name and
some facts, `captions` a flag with one fact and `vqa` a flag with a question and its answer. What is asked about a flag
is one hop away from it, or two: no item has both a flag and a currency, so the name has to be looked up first
(`phrases.py` has the table). A fifth of the countries is never asked about in training.

250 flags are too few to learn to compare pictures, and 250 names to learn to copy words. So training also reads 4,000
countries with flags, names and facts that are made up (`drawing.py`, `invented.py`). Evaluation never sees those.

    fetch.py        where flags and facts are from; `python -m recipes.countries.fetch data/countries`
    facts.py        what is known, who is held out; `Atlas`
    invented.py     facts that nobody knows           drawing.py, charges.py   flags that nobody flies
    looks.py        a flag as it might be photographed
    phrases.py      relations, sources, and the sentences of items and questions
    items.py        what memory is made from, and what is easily taken for it
    pieces.py       the tokenizer
    data.py         `CountriesConfig`: the training stream and the evaluation's questions
    evaluation.py   what is right, and what has to happen when the memory is changed       sheet.py   a picture of it

    python train.py experiment=countries_warm          items are given
    python train.py experiment=countries_long          the same, among look-alikes
    python train.py experiment=countries_joint         items are found
    python eval.py experiment=countries_joint weights=runs/countries_joint
"""
