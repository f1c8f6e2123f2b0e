"""The table without the triplets that choices were made with: every seventh of a set, of the film every 21st."""

import csv

from benchmarks.film_rest import METRICS, read, rest


def test_triplets_that_choices_were_made_with_are_left_out(tmp_path):
    lines = [
        {"set": name, "scale": 1.0, "name": f"{name} {i}", "method": method, **dict.fromkeys(METRICS, 20.0 + i)}
        for name, count in (("film", 43), ("cup_2", 8), ("motorcycle", 1))
        for i in range(count)
        for method in ("film", "dis-flow")
    ]
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows(lines)
    kept = rest(read(tmp_path / "results.csv"))
    left_out = {row["name"] for row in lines} - {row["name"] for row in kept}
    assert left_out == {"film 0", "film 21", "film 42", "cup_2 0", "cup_2 7", "motorcycle 0"}
    assert len(kept) == len(lines) - 2 * len(left_out) and kept[0] == lines[2]
