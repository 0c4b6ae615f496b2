"""A GPU as a device, for the tests of what the bench knows of GPUs."""

from aot_tune.bench.devices.cuda import device_of

H200 = device_of(
    name="NVIDIA H200",
    uuid="GPU-0",
    capability=90,
    sm_count=132,
    l2_bytes=60 << 20,
    memory_bytes=150_754_820_096,
    driver="580.159.04",
)
