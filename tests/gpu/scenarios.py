"""What the tests run in fresh processes: `scenarios.py NAME MODULE TEMPLATES [ARGUMENT...]`; exceptions fail."""

import ctypes
import inspect
import itertools
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import model_scenarios
from chains import chained
from draws import Drawn, calls_of, guards_of, odd_problems, refusing
from problems import Case
from world import World, refused

from aot_tune.spec import Expr, Operator


def variants(world: World, wanted: str) -> None:
    """Check the variants that AOT_TUNE_FORCE names: [[operator, variant, dtypes, requires], ...]; prints what came."""
    found = {}
    for name, variant, dtypes, requires in json.loads(wanted):
        operator = world.operator(name)
        guards = guards_of(operator, dtypes, requires)
        told = judged(world, operator, guards, calls_of(operator, guards, dtypes))
        told["chained"], faults = chained(world.ops, operator, dtypes)
        told["faults"] += faults
        found[f"{name}:{variant}"] = told
    print("RESULT " + json.dumps(found))


def judged(world: World, operator: Operator, guards: tuple[Expr, ...], calls: Iterable[Drawn]) -> dict[str, Any]:
    """Make calls to the one variant of an operator that AOT_TUNE_FORCE names.

    What its guards admit must be served and be right, the rest must be refused. Returns the faults, and how many calls
    of each layout were served and refused.
    """
    served, refused, faults = Counter[str](), Counter[str](), list[str]()
    for number, (chosen, layout) in enumerate(calls):
        case = Case(operator, chosen, layout, number)
        against = refusing(operator, guards, chosen, layout)
        try:
            case.call(world.ops)
        except world.ops.Error as error:
            refused[layout] += 1
            faults += [] if against and "AOT_TUNE_FORCE" in str(error) else [f"{case.text}: {error}"]
            continue
        served[layout] += 1
        fault = f"{case.text}: served, though not {against[0]}" if against else case.fault()
        faults += [fault] if fault else []
    return {"served": served, "refused": refused, "faults": faults}


def without_force(world: World) -> None:
    """Every odd call has an answer, and it is right."""
    faults = []
    for name in world.ops.operators:
        operator = world.operator(name)
        for number, (chosen, layout) in enumerate(odd_problems(operator, 2, 40)):
            case = Case(operator, chosen, layout, number)
            case.call(world.ops)
            if fault := case.fault():
                faults.append(fault)
    assert not faults, "\n".join(faults[:20])


def empty_calls(world: World) -> None:
    """No rows, and sums over nothing."""
    for rows in (0, 3):
        x = torch.randn(rows, 0, device="cuda", dtype=torch.bfloat16)
        if "softmax" in world.ops.operators:
            assert world.ops.softmax(x).shape == (rows, 0)
    a, b = (torch.empty(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((4, 0), (0, 8)))
    bias = torch.randn(8, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(world.ops.gemm(a, b, bias), bias.expand(4, 8).contiguous())


def no_numbers(world: World, modes: str = "ieee,tf32") -> None:
    """Infinities and NaN among the factors of floats come out where they belong, in few rows and many."""
    for rows, math in itertools.product((1, 16, 64, 256, 1024, 4096), modes.split(",")):
        a, b = torch.randn(rows, 3584, device="cuda"), torch.randn(3584, 3584, device="cuda")
        infinity = float("inf")
        a[0, 5], a[-1, 8], b[6, 8], b[7, 9] = infinity, -infinity, infinity, float("nan")
        b[8, 5] = b[9, 8] = 0.0
        if rows > 2:
            a[1, 5], a[1, 8], a[2, 7] = infinity, infinity, -infinity
        got, want = world.ops.gemm(a, b.T, math=math), a.double() @ b.double().T
        served = world.ops.explain("gemm", a, b.T, math=math)["variant"]
        assert torch.equal(got.isnan(), want.isnan()), (rows, served)
        assert torch.equal(got[got.isinf()], want[want.isinf()].float()), (rows, served)


def far_apart(world: World, modes: str = "ieee,tf32") -> None:
    """Floats count beside far larger ones of their row, which meet zeros; rows may be of any size."""
    for rows, far, math in itertools.product((16, 256, 1030, 4096), (10, 20, 28, 34, 39, 100), modes.split(",")):
        a, b = torch.randn(rows, 3584, device="cuda"), torch.randn(3592, 3584, device="cuda")
        a *= 2.0 ** (torch.arange(rows, device="cuda") % 41 - 20)[:, None]
        b *= 2.0 ** (torch.arange(3592, device="cuda") % 37 - 18)[:, None]
        bias, residual = torch.randn(3592, device="cuda"), torch.randn(rows, 3592, device="cuda")
        a[1, 5], b[:, 5] = 2.0**far, 0.0
        b[2, 7], a[:, 7] = 2.0**far, 0.0
        got = world.ops.gemm(a, b.T, bias, residual, math=math)
        want = a.double() @ b.double().T + bias.double() + residual.double()
        sizes = a.double().abs() @ b.double().abs().T + bias.double().abs() + residual.double().abs()
        served = world.ops.explain("gemm", a, b.T, bias, residual, math=math)["variant"]
        assert bool(((got - want).abs() <= sizes * 2.0**-9).all()), (rows, far, math, served)


def two_streams(world: World) -> None:
    """Calls on two streams at once do not share a workspace, and each is ordered with its own stream's work."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    cases = [world.usual(seed) for seed in (1, 2)]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, members in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                for case in members:
                    case.poison()
                    case.call(world.ops)
    _all_right(cases)
    for stream, members in zip(streams, cases, strict=True):  # the stream given outright, as an object and a number
        for case, given in zip(members, (stream, stream.cuda_stream) * len(members), strict=False):
            case.poison()
            torch.cuda.synchronize()
            case.call(world.ops, stream=given)
    _all_right(cases)


def _all_right(cases: Sequence[Sequence[Case]]) -> None:
    torch.cuda.synchronize()
    faults = [fault for members in cases for case in members if (fault := case.fault())]
    assert not faults, "\n".join(faults[:10])


def two_threads(world: World) -> None:
    """The first calls of a process come from several threads at once, each with a stream of its own."""
    cases = [world.usual(seed) for seed in range(4)]
    torch.cuda.synchronize()
    ready, errors = threading.Barrier(len(cases)), list[BaseException]()

    def work(members: Sequence[Case]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                ready.wait()
                for _ in range(50):
                    for case in members:
                        case.call(world.ops)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(members,)) for members in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    _all_right(cases)


def capture(world: World, first: str) -> None:
    """Calls in a graph, captured in global mode; `first`: nothing was called or loaded before."""
    cases = world.usual()
    if first == "preloaded":
        world.ops.preload("cuda:0")
    elif first == "warm":
        for case in cases:
            case.call(world.ops)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        for case in cases:
            case.call(world.ops)
    for case in cases:
        case.poison()
    for _ in range(3):
        graph.replay()
    _all_right([cases])
    for case in cases:  # and calls without the graph are still right
        case.poison()
        case.call(world.ops)
    _all_right([cases])
    for case in cases:  # replays compute from what is in the tensors then
        case.poison()
    graph.replay()
    _all_right([cases])


def capture_beside(world: World) -> None:
    """One thread captures in global mode while another makes its first calls: neither disturbs the other."""
    mine, others = world.usual(1), world.usual(2)
    torch.cuda.synchronize()
    inside, outside, errors = threading.Event(), threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                inside.wait(60)
                for case in others:
                    case.call(world.ops)
        except BaseException as error:
            errors.append(error)
        finally:
            outside.set()

    thread = threading.Thread(target=work)
    thread.start()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        mine[0].call(world.ops)
        inside.set()
        outside.wait(60)
        for case in mine[1:]:
            case.call(world.ops)
    thread.join()
    assert not errors, errors
    graph.replay()
    _all_right([mine, others])


def preload(world: World) -> None:
    """Every way to name a device; often, and by several threads at once."""
    ways = ("cuda", "cuda:0", 0, torch.device("cuda", 0))
    for device in ways:
        world.ops.preload(device)
    threads = [threading.Thread(target=world.ops.preload, args=("cuda:0",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for wrong in ("cuda:99", "nonsense"):
        refused((world.ops.Error, TypeError, ValueError), world.ops.preload, wrong)
    cases = world.usual()
    for case in cases:
        case.call(world.ops)
    _all_right([cases])


def workspaces(world: World) -> None:
    """A workspace of the caller's: a large one serves; a small one gets another variant, and the result is right."""
    for size in (32 << 20, 1 << 10, 64):
        memory = torch.empty(size, dtype=torch.uint8, device="cuda").fill_(0xA5)
        cases = world.usual()
        for case in cases:
            case.call(world.ops, workspace=memory)
        _all_right([cases])


def wrong_calls(world: World) -> None:
    """Tensors on two devices, and of the wrong dtype: typed errors, and the next call is right."""
    x, y = torch.randn(4, 64, device="cuda"), torch.empty(4, 64)
    for given, out in ((x, y), (y, x), (x, torch.empty(4, 64, device="cuda", dtype=torch.float16))):
        refused((world.ops.Error,), world.ops.softmax, given, out=out)
    torch.testing.assert_close(world.ops.softmax(x), torch.softmax(x, -1))


def imports(world: World) -> None:
    """Importing the library and asking for its manifest makes no context."""
    assert world.ops.manifest()
    assert not torch.cuda.is_initialized()
    context = ctypes.c_void_p()
    status = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    assert status == 3 or context.value is None  # 3: the driver was not even initialised


def twice(world: World) -> None:
    """The library of the tests' own templates is right."""
    faults = []
    for number, (chosen, layout) in enumerate(odd_problems(world.operator("twice"), 3, 30)):
        case = Case(world.operator("twice"), chosen, layout, number)
        case.call(world.ops)
        faults.append(case.fault())
    assert not any(faults), "\n".join(filter(None, faults))


def found_in(module: Mapping[str, object]) -> dict[str, Callable[..., None]]:
    """The scenarios of a module by name: its public functions of a world that return nothing."""
    found = {}
    for name, one in module.items():
        if inspect.isfunction(one) and not name.startswith("_"):
            form = inspect.signature(one)
            if next(iter(form.parameters), "") == "world" and form.return_annotation == "None":
                found[name] = one
    return found


SCENARIOS = found_in(vars(model_scenarios)) | found_in(globals())

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](World(*sys.argv[2:4]), *sys.argv[4:])
