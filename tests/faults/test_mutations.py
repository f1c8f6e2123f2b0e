"""A sample of `make faults`: damaged files are one line that names them, or are read."""

import mutations
import pytest


@pytest.mark.long
@pytest.mark.parametrize("reader", mutations.READERS)
def test_damaged_files(reader):
    row = mutations.try_reader(reader, count=25, seed=1, most=4)
    assert (row["raw"], row["nameless"], row["started"]) == (0, 0, 0), row["kinds"][:3]
    assert row["read"] + row["refused"] == row["changes"] > 0 and row["slowest s"] < mutations.MOST_SECONDS
