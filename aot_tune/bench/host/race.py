"""The final: entries and baselines in interleaved rounds of changing order. Paired times decide."""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import statistics
import time
from collections.abc import Sequence

from aot_tune.bench.host.bench_context import BenchContext, told_apart
from aot_tune.bench.host.worker_process import DiedError, Worker
from aot_tune.bench.protocol import messages
from aot_tune.bench.protocol.measurement_records import (
    BASELINE,
    WORKER_FAULT,
    DeviceState,
    Measurement,
    Prepared,
    Seen,
    Status,
    group_size,
)
from aot_tune.bench.times import is_decided, steady_rounds
from aot_tune.compile import Variant
from aot_tune.spec import Baseline
from aot_tune.support.processes import wait_until_quiet

_SPARED = 3
"""How often a worker's death in a runner's turns may be blamed on others in the worker."""
_ROUNDS = 6
"""A race on a CPU that is decided after so many rounds ends with one more."""
_FAR = 20
"""On a CPU, a baseline whose call is long, and so many times as long as the fastest, is timed once."""
_LINGER = 0.3
"""Seconds to wait whether a worker dies of what the one entry in it left running."""

_AGAIN = 3
"""How often a winner's calls are repeated again in a worker of its own, because it was wrong beside others."""
_POISONED = 4
"""Before one of so many samples, the outputs are poisoned."""


_VARIES = "not deterministic: results vary between equal calls; if that is meant, declare deterministic=False"


class _Runner:
    """A variant or a baseline during a race. It is out once `status` is not ok."""

    def __init__(self, name: str, digest: str, handle: str, variant: Variant | None) -> None:
        self.name, self.digest, self.handle, self.variant = name, digest, handle, variant
        self.status: Status = "ok"
        self.reason = ""
        self.error: float | None = None
        self.bitwise: bool | None = None
        self.overhead = 0.0
        self.threads = 0
        self.calls, self.warm = 1, 1
        self.spared, self.tried = 0, False
        self.home: Worker | None = None
        self.samples: list[float] = []

    def turn(self, key: str, *, fresh: bool, clock: bool, resumed: bool) -> messages.Turn:
        """The request for the next sample. Nobody can foresee before which samples the outputs are poisoned."""
        return messages.Turn(
            handle=self.handle,
            key=key,
            calls=self.calls,
            warm=self.warm,
            fresh=fresh,
            poison=secrets.randbelow(_POISONED) == 0,
            clock=clock,
            resumed=resumed,
        )

    def out(self, status: Status, reason: str) -> None:
        """End its turns, for a reason."""
        self.status, self.reason = status, reason


class Race:
    """One race on one problem."""

    def __init__(
        self, context: BenchContext, prepared: Prepared, variants: Sequence[Variant], baselines: Sequence[Baseline]
    ) -> None:
        self._context, self._pool, self._policy = context, context.pool, context.policy
        self._prepared = prepared
        self._race = secrets.token_hex(8)
        self._entries = [_Runner(v.id, v.code, f"race-{i}", v) for i, v in enumerate(variants)]
        self._baselines = [_Runner(f"{BASELINE}{b.name}", "", f"baseline-{b.name}", None) for b in baselines]
        self._loaded_in: Worker | None = None
        self._loaded: set[str] = set()
        self._verified: set[str] = set()
        self._recoveries = context.policy.on_gpu.waits
        self._states: list[DeviceState] = []
        self._clocks: list[float] = []
        self._last: _Runner | None = None

    def run(self) -> list[Measurement]:
        """Hold the race. There is always one measurement per entry. The last turns also verify what calls left."""
        for runner in self._entries:
            self._qualify(runner)
        for runner in self._baselines:
            self._prepare_baseline(runner)
        self._baselines = [b for b in self._baselines if b.status != "skipped"]
        runners = [*self._entries, *self._baselines]
        self._rounds(runners)
        self._repeat_winner()
        self._unload()
        return [self._result(r) for r in runners]

    def _worker(self, runner: _Runner) -> Worker:
        """The runner's worker, in which it is loaded beside the runners that came before it."""
        if runner.variant is None:
            worker = self._pool.frameworks()
            if worker is not runner.home:  # another baseline has taken the last worker with it
                self._prepare_baseline(runner)
            return worker
        worker = self._pool.candidates()
        if self._loaded_in is not None and worker is not self._loaded_in:  # the worker died between two turns
            self._try_those_in(self._loaded_in)
            worker = self._pool.candidates()
        if worker is not self._loaded_in:
            self._context.introduce(worker, self._prepared)
            self._context.make_buffers(worker, self._prepared)
            self._loaded_in, self._loaded, self._verified = worker, set(), set()
        if runner.status == "ok" and runner.handle not in self._loaded:
            self._load(worker, runner)
            self._loaded.add(runner.handle)
        return worker

    def _load(self, worker: Worker, runner: _Runner) -> None:
        assert runner.variant is not None
        worker.hosted.add(runner.digest)
        request = messages.Load(handle=runner.handle, path=runner.variant.shared, symbol=runner.variant.symbol)
        try:
            reply = self._pool.request(worker, request, self._policy.deadlines.load)
        except DiedError as death:
            self._blame(runner, worker, death)
            raise
        if isinstance(reply, messages.Failure):
            runner.out(reply.status, reply.reason)

    def _ask(self, runner: _Runner, request: messages.Request, seconds: float) -> messages.Reply | None:
        """Ask a runner's worker. If the worker dies, the runner is out, and the race goes on without it.

        Something that others left in the worker may have killed it. Then each of them that is still in the race is
        tried in a new worker. The runner is asked again in a worker that has held nothing else. It is asked there too,
        as often as before, if it is wrong: others may be why.
        """
        deaths, asks, repeats = 0, 1, isinstance(request, messages.Verify) and request.repeat
        while runner.status == "ok":
            spared = runner.spared
            try:
                worker = self._worker(runner)
            except DiedError as death:
                deaths += runner.status == "ok" and runner.spared == spared  # else it died while the runner was loaded
                if deaths == 2 and self._context.family.on_host and death.status == "oom":
                    raise self._context.cannot_hold(self._prepared, death) from None
                if deaths == 2:
                    for other in self._standing():
                        other.out("no-result", f"no worker can hold the problem: {death.reason}")
                continue
            if runner.status != "ok":
                break
            try:
                reply = self._answer(runner, worker, [request] * asks, seconds)
            except DiedError as death:
                self._blame(runner, worker, death)
                continue
            if messages.is_fault(reply) and worker.hosted - {runner.digest} and runner.spared < _SPARED:
                runner.spared, self._loaded_in = runner.spared + 1, None
                asks = _AGAIN if repeats else len(runner.samples) + 1
                self._pool.dismiss(worker)
                continue
            if not isinstance(reply, messages.Failure | messages.Checked) or reply.status == "ok":
                return reply
            before = isinstance(reply, messages.Checked) and not repeats
            runner.out(reply.status, f"{reply.reason}{' before the race' * before}")
        return None

    def _answer(
        self, runner: _Runner, worker: Worker, requests: list[messages.Request], seconds: float
    ) -> messages.Reply:
        """A worker's last answer to requests, or the first that says that the runner is wrong.

        In each worker it is verified first. What timed calls leave is compared with that. Bits that vary are wrong,
        unless the operator declares that they may.
        """
        may_vary = self._context.operators[self._prepared.operator].deterministic is False
        if runner.variant and runner.handle not in self._verified and not isinstance(requests[0], messages.Verify):
            requests.insert(0, self._verification(runner))
        self._verified.add(runner.handle)
        for request in requests:
            reply = self._pool.request(worker, request, seconds)
            if isinstance(reply, messages.Checked) and reply.bitwise is False and not may_vary:
                reply = messages.Checked(status="wrong-result", reason=_VARIES)
            if messages.is_fault(reply):
                break
        return reply

    def _blame(self, runner: _Runner, worker: Worker, death: DiedError) -> None:
        """Put out a runner whose worker died. If something else may have killed it, try the others instead.

        Raises:
            TooLargeError: when workers were killed again for memory that it did not take.
        """
        if death.starved:
            if runner.spared == _SPARED:
                raise self._context.cannot_hold(self._prepared, death)
            runner.spared, self._loaded_in = runner.spared + 1, None
            self._pool.relieve()
            return
        if not self._may_be_blameless(runner, worker, death):
            self._strike(runner, death)
            return
        runner.spared += 1
        self._try_those_in(worker, but=runner)

    def _may_be_blameless(self, runner: _Runner, worker: Worker, death: DiedError) -> bool:
        """Whether something other than the runner may have killed its worker, and another try is worth it."""
        killed = death.status == "timeout" or death.reason.startswith("killed by SIGKILL")  # also at a budget's end
        return not (killed or death.certain or worker.hosted <= {runner.digest} or runner.spared == _SPARED)

    def _try_those_in(self, died: Worker, but: _Runner | None = None) -> None:
        """Try each entry once in a worker that it has for itself. If the worker dies, the entry is out."""
        for runner in self._standing():
            self._loaded_in = None
            if runner is but or runner.tried or runner.digest not in died.hosted:
                continue
            runner.tried = True
            request = messages.Verify(handle=runner.handle, keys=(self._prepared.key,), quick=True)
            with contextlib.suppress(DiedError):  # a death here is reported at the next request
                worker = self._worker(runner)
                try:
                    self._pool.request(worker, request, self._policy.deadlines.verify)
                    time.sleep(_LINGER)
                    self._pool.request(worker, messages.Ping(), self._policy.deadlines.load)
                    self._pool.dismiss(worker)
                except DiedError as death:
                    self._strike(runner, death)
        self._loaded_in = None

    def _standing(self) -> list[_Runner]:
        return [r for r in self._entries if r.status == "ok"]

    def _strike(self, runner: _Runner, death: DiedError) -> None:
        runner.out(death.status, death.reason)
        self._loaded_in = None
        if runner.variant is not None:
            self._context.findings.strike(runner.digest, death)

    def _qualify(self, runner: _Runner) -> None:
        struck = self._context.struck(runner.digest)
        if struck is not None:
            runner.out(struck.status, struck.reason)
            return
        reply = self._ask(runner, self._verification(runner), self._policy.deadlines.verify)
        if not isinstance(reply, messages.Checked):
            return
        runner.error = reply.error
        if reply.runs:
            runner.calls = group_size(reply.runs[-1], self._policy.sample_ns)

    def _verification(self, runner: _Runner, *, repeat: bool = False) -> messages.Verify:
        renewed, key = not (repeat or self._context.is_large(self._prepared)), self._prepared.key
        return messages.Verify(
            handle=runner.handle, keys=(key,), quick=True, renewed=renewed, repeat=repeat, threads=runner.threads
        )

    def _prepare_baseline(self, runner: _Runner) -> None:
        try:
            worker = runner.home = self._pool.frameworks()
            self._context.introduce(worker, self._prepared)
            name = runner.name.removeprefix(BASELINE)
            request = messages.PrepareBaseline(handle=runner.handle, key=self._prepared.key, name=name)
            reply = self._pool.request(worker, request, self._policy.deadlines.prepare)
        except DiedError as death:
            runner.out(death.status, death.reason)
            return
        if isinstance(reply, messages.Checked):
            runner.error, runner.status, runner.reason = reply.error, reply.status, reply.reason
            if reply.status != "ok":
                self._context.remarks.log(f"{self._prepared.operator}: {runner.name} is wrong and does not count")
        elif isinstance(reply, messages.Empty):
            runner.out("skipped", reply.reason)
            self._context.remarks.log(f"{runner.name} is not run: {reply.reason}")
        else:
            # What it raises is its own doing, not the worker's, and would be the same the next time.
            reason = reply.reason.removeprefix(WORKER_FAULT) if isinstance(reply, messages.Failure) else repr(reply)
            runner.out("failed", reason)
            self._context.remarks.log(f"{self._prepared.operator}: {runner.name} fails: {reason}")

    def _rounds(self, runners: Sequence[_Runner]) -> None:
        order = random.Random(f"{self._policy.seed} {self._prepared.key}")
        for runner in runners:
            self._size(runner)
        runners = self._near(runners)
        running = [r for r in runners if r.status == "ok"]
        turn = sum(map(self._turn_ns, running), 0.0)
        self._look()
        rounds = int(self._policy.race_ns / turn) if turn else 0
        rounds = min(max(rounds, self._policy.race_least), self._policy.race_rounds)
        for runner in runners:
            runner.samples.clear()
        for number in range(rounds):
            last = number == rounds - 1 or (number >= _ROUNDS and self._is_decided(runners))
            self._round(runners, order, fresh=last)
            if last:
                break
        self._repeat(runners, order)

    def _near(self, runners: Sequence[_Runner]) -> list[_Runner]:
        """Those that take turns: all but baselines that are far behind, which keep the sample that sized them."""
        firsts = [r.samples[0] for r in runners if r.samples and r.status == "ok"]
        if not firsts or not self._context.family.on_host:
            return list(runners)
        most = max(_FAR * min(firsts), self._policy.long_ns)  # a short call may have been disturbed
        return [r for r in runners if r.variant is not None or not r.samples or r.samples[0] <= most]

    def _is_decided(self, runners: Sequence[_Runner]) -> bool:
        """Whether a CPU's race can end early. A GPU's rounds take little time beside its start."""
        samples = [r.samples for r in runners if r.status == "ok"]
        return self._context.family.on_host and bool(samples) and is_decided(samples)

    def _turn_ns(self, runner: _Runner) -> float:
        """Roughly how long a turn takes: its sample, and the calls before it that do not count."""
        call, gpu = statistics.median(runner.samples), self._policy.gpu
        load = gpu.load_before(call) if gpu and runner.warm else 0
        return call * (runner.calls + runner.warm) + load

    def _round(self, runners: Sequence[_Runner], order: random.Random, *, fresh: bool) -> None:
        """One turn of each runner that is still in the race. After the last one, the device's clock is probed.

        The device's state is asked once per round, because asking takes longer than a sample. So a spoiled round is
        taken again as a whole.
        """
        spoiled = True
        while spoiled:
            turns = [r for r in runners if r.status == "ok"]
            order.shuffle(turns)
            mhz = 0.0
            for runner in turns:
                mhz = self._turn(runner, fresh=fresh, clock=self._probes and runner is turns[-1])
            spoiled = self._spoiled()
            for runner in turns if spoiled else ():
                del runner.samples[-1:]
        self._clocks.append(mhz)

    @property
    def _probes(self) -> bool:
        return bool(self._policy.gpu and self._policy.gpu.probe_cycles)

    def _steady(self, least: int) -> list[int]:
        """Which rounds to keep. If the power cap was seen, all are kept, because it moves the clock with every kernel.

        The first state does not count. It is of what ran before the rounds.
        """
        if any(self._context.monitor.capped(state) for state in self._states[1:]):
            return list(range(len(self._clocks)))
        return steady_rounds(self._clocks, self._policy.on_gpu.clock_change, least)

    def _repeat_winner(self) -> None:
        """Repeat the winner's call. If it is wrong then, it is out, and the next one is the winner."""
        known, seconds = self._context.findings.repeated, self._policy.deadlines.verify
        while ours := [r for r in self._standing() if r.samples]:
            winner = min(ours, key=lambda r: statistics.median(r.samples))
            if winner.digest not in known:
                reply = self._ask(winner, self._verification(winner, repeat=True), seconds)
                if isinstance(reply, messages.Checked) and reply.bitwise is not None:
                    known[winner.digest] = reply.bitwise
            if winner.status == "ok":
                winner.bitwise = known.get(winner.digest)
                break

    def _repeat(self, runners: Sequence[_Runner], order: random.Random) -> None:
        """Repeat rounds whose clock changed, and drop such rounds as long as enough others are left."""
        if not self._probes:
            return
        if not any(self._clocks) and any(r.status == "ok" for r in runners):
            self._context.remarks.log("the clock of multiprocessors cannot be probed, so NVML tells the clock")
        rounds = len(self._clocks)
        for _ in range(math.ceil(self._policy.on_gpu.repeats * rounds)):
            if len(self._steady(0)) >= rounds:
                break
            self._round(runners, order, fresh=True)
        kept = self._steady(self._policy.race_least)
        if len(kept) < len(self._clocks):
            what = f"{self._prepared.operator} {self._prepared.problem.id}"
            self._context.log(f"{what}: {len(self._clocks) - len(kept)} rounds of its race were under a changed clock")
        for runner in runners:
            if runner.status == "ok":
                runner.samples = [runner.samples[i] for i in kept]
        self._clocks = [self._clocks[i] for i in kept]

    def _size(self, runner: _Runner) -> None:
        """Find how many calls a sample takes. A long call needs no call to warm up."""
        if runner.status != "ok":
            return
        self._turn(runner, fresh=False, clock=False)
        if runner.samples:
            call = runner.samples[-1] + runner.overhead
            runner.calls = group_size(call, 4 * self._policy.sample_ns)
            runner.warm = 0 if call > self._policy.long_ns else 1

    def _turn(self, runner: _Runner, *, fresh: bool, clock: bool) -> float:
        """Take a runner's next sample, or find that it is out. Returns the device's clock in MHz, or 0."""
        self._hush(runner)
        last, self._last = self._last, runner
        strangers = bool(self._states and self._states[-1].others)
        resumed = strangers or last is None or (last.variant is None) != (runner.variant is None)
        request = runner.turn(self._prepared.key, fresh=fresh, clock=clock, resumed=resumed)
        reply = self._ask(runner, request, self._policy.deadlines.bench)
        if not isinstance(reply, messages.Timed):
            if runner.status == "ok":
                runner.out("no-result", "no worker could time it")
            return 0.0
        if reply.status != "ok":
            runner.out(reply.status, reply.reason)
            return 0.0
        runner.overhead, runner.reason = reply.overhead, runner.reason or reply.reason
        runner.threads = reply.threads
        runner.samples.append(reply.samples[0])
        return reply.mhz

    def _hush(self, runner: _Runner) -> None:
        """Before a turn: wait until nothing else runs on the cores, where that matters."""
        if not self._context.family.on_host:
            return
        for other in self._pool.workers():
            if (other.role == "framework") == (runner.variant is not None):
                wait_until_quiet([other.pid], 0.5)
        if runner.variant is not None:
            self._pool.settle()

    def _look(self) -> DeviceState | None:
        state = self._context.conditions()
        self._states += [state] if state is not None else []
        return state

    def _spoiled(self) -> bool:
        """Whether the device slowed down during the last round. Before another try, this waits for it."""
        state = self._look()
        why = self._context.monitor.spoiled(state) if self._recoveries else ""
        if not why:
            return False
        self._recoveries -= 1
        self._context.monitor.recover(why)
        return True

    def _unload(self) -> None:
        if self._loaded_in is not None and self._loaded_in.state == "READY":
            for runner in self._entries:
                try:
                    unload = messages.Unload(handle=runner.handle)
                    self._pool.request(self._loaded_in, unload, self._policy.deadlines.load)
                except DiedError as death:
                    if not self._may_be_blameless(runner, self._loaded_in, death):
                        self._strike(runner, death)
                    break
        for runner in self._baselines:
            if runner.home is not None and runner.home.state == "READY":
                unload = messages.Unload(handle=runner.handle)
                with contextlib.suppress(DiedError):
                    self._pool.request(runner.home, unload, self._policy.deadlines.load)

    def _result(self, runner: _Runner) -> Measurement:
        floor = self._context.floor_ns(self._prepared)
        final = told_apart(self._context, floor, runner.samples, runner.overhead) if runner.status == "ok" else None
        status, reason = runner.status, runner.reason
        if final and runner.variant is not None and statistics.median(final) < floor:
            # Its screen was not below the floor, or it would not race. So the clock slipped, and the screen stands.
            status, reason = "skipped", f"{statistics.median(final):.1f} ns per call is below the device's floor"
            final = None
        elif status == "ok":
            reason = self._context.remarks.on(self._prepared, reason)
        return self._context.measurement(
            self._prepared,
            runner.name,
            runner.digest,
            status=status,
            reason=reason,
            final=final or None,
            race=self._race if final else None,
            error=runner.error,
            bitwise=runner.bitwise,
            overhead=runner.overhead,
            threads=runner.threads,
            seen=Seen.of(self._context.device, self._states, self._clocks),
        )
