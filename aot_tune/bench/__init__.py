"""Measures candidates: in worker processes, verified, on one device.

    device = family("cpu").devices(2)[0]
    with Bench(device, Policy(), scratch=folder, threads=2, log=print) as bench:
        prepared = bench.prepare(operator, problem)
        variant = Variant(rendered=..., object=..., shared=...)
        measured = bench.screen(prepared, variant, best_ns)
        finals = bench.race(prepared, [variant])

The `status` and `reason` of a Measurement say what a candidate did. An exception means that the machine or the operator
is at fault. Measurements of one `race` have `final` times of the same rounds. Compare them with
`times.paired_gain(old.final, new.final)`. Baselines appear in races as `baseline:<name>`.

Rooms: `protocol` is what both sides of the pipe know, `devices` what a build asks of a family of devices, `host` the
side that never touches a device, `worker` what runs inside the sandbox.
"""
