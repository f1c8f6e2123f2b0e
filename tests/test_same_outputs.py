"""`benchmarks.same_outputs`: what differs between two runs of one code does not count."""

from benchmarks.same_outputs import differences


def test_speeds_do_not_count_and_losses_do():
    one = [{"step": 4, "loss": 0.5, "steps_per_s": 1.0, "refresh_seconds": 1.0}]
    assert not any(value for _, value in differences(one, [one[0] | {"steps_per_s": 2.0, "refresh_seconds": 3.0}], "x"))
    assert dict(differences(one, [one[0] | {"loss": 0.75}], "x"))["x[0].loss"] == 0.25
