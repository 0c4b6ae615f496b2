"""Measures candidates: in worker processes, verified, on one device.

    device = devices("cpu", 2)[0]
    with Bench(device, Policy(), scratch=folder, threads=2, log=print) as bench:
        prepared = bench.prepare(operator_folder, operator, problem)
        entrant = Entrant(candidate=..., shared_object=..., symbol=..., code=..., requires=...)
        measured = bench.screen(prepared, entrant, best_ns)
        finals = bench.race(prepared, [entrant])

Whatever a candidate does is the `status` and `reason` of its Measurement; exceptions mean that the machine or the
operator is at fault. Measurements with a common `race` have `final` times that pair up, round by round: compare them
with `times.paired_gain(old.final, new.final)`. Baselines appear in races as `baseline:<name>`.

Rooms: `protocol` is what both sides of the pipe know, `devices` what a build asks of a family of devices, `host` the
side that never touches one, `worker` what runs inside the sandbox.
"""
