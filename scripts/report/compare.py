# SPDX-License-Identifier: Apache-2.0
"""What changed between two runs of `headrace bench`, workload by workload."""
import statistics
from typing import NamedTuple

from . import bench
from .document import Refused
from .rank_sum import Ratio, unpaired_ratio
from .words import three_digits


class Compared(NamedTuple):
    name: str
    a: float  # bytes per second, medians of the rounds
    b: float
    ratio: Ratio  # of b / a

    def is_below(self, allowed):
        """Slower by more than `allowed` (0.05: 5 %), beyond noise."""
        return self.ratio.told_apart() and self.ratio.median < 1 - allowed

    def verdict(self):
        if not self.ratio.bounded:
            return "too few rounds to tell"
        if not self.ratio.told_apart():
            return "not told from noise"
        word = "faster" if self.ratio.low > 1 else "slower"
        return f"{word} by {100 * abs(self.ratio.median - 1):.1f} %"


class Comparison:
    """`a` is the earlier of two bench.Bench."""

    def __init__(self, a, b):
        in_a = {job.workload: job for job in a.measured()}
        in_b = {job.workload: job for job in b.measured()}
        both = [(job, in_b[workload]) for workload, job in in_a.items() if workload in in_b]
        self.cells = [Compared(one.name, statistics.median(one.rates()),
                               statistics.median(other.rates()),
                               unpaired_ratio(one.rates(), other.rates())) for one, other in both]
        self.only_in_a = [job.name for workload, job in in_a.items() if workload not in in_b]
        self.only_in_b = [job.name for workload, job in in_b.items() if workload not in in_a]
        self.cautions = [*_other_facts(a, b), *_other_queues(both)]

    def below(self, allowed):
        """None allowed: none is."""
        return [cell for cell in self.cells if allowed is not None and cell.is_below(allowed)]

    def text(self, allowed):
        lines = [f"  {'GB/s, median of rounds':<33} {'A':>7} {'B':>7}  {'B / A':>6} [95 %]"]
        for cell in self.cells:
            interval = f"[{cell.ratio.low:.3f}, {cell.ratio.high:.3f}]"
            lines.append(f"  {cell.name:<33} {three_digits(cell.a / 1e9):>7} "
                         f"{three_digits(cell.b / 1e9):>7}  {cell.ratio.median:>6.3f} "
                         f"{interval:<16} {cell.verdict()}")
        lines += [f"  {name}: in A only" for name in self.only_in_a]
        lines += [f"  {name}: in B only" for name in self.only_in_b]
        lines += [f"caution: {caution}" for caution in self.cautions]
        if allowed is not None:
            lines += [f"BELOW: {cell.name} is {100 * (1 - cell.ratio.median):.1f} % slower in B, "
                      f"beyond noise; {100 * allowed:.3g} % were allowed"
                      for cell in self.below(allowed)]
            if not self.below(allowed):
                lines.append(f"no cell is more than {100 * allowed:.3g} % slower in B, beyond "
                             "noise")
        return "\n".join(lines) + "\n"

    def json(self, allowed):
        return {
            "method": "unpaired, rank sum test",
            "fail_below": allowed,
            "jobs": [{"jobname": cell.name, "a_bytes_per_second": cell.a,
                      "b_bytes_per_second": cell.b, "ratio": cell.ratio._asdict(),
                      "told_apart": cell.ratio.told_apart(),
                      "below": allowed is not None and cell.is_below(allowed)}
                     for cell in self.cells],
            "only_in_a": self.only_in_a,
            "only_in_b": self.only_in_b,
            "cautions": self.cautions,
        }


def _drives_text(run):
    parts = ((drive.text("path"), drive.text("model"), drive.text("file_system"))
             for drive in run.drives)
    return ", ".join(f"{path} ({model + ', ' if model else ''}{system})"
                     for path, model, system in parts)


def _facts(run):
    machine, build = (bench.facts_of(run.document, key) for key in ("machine", "build"))
    facts = {name: machine.get(name, "")
             for name in ("cpu", "usable cpus", "memory", "huge pages", "kernel")}
    facts.update((name, build.get(name, "")) for name in ("build type", "sanitizers"))
    return {**facts, "drives": _drives_text(run), "fio": run.document.text("fio version")}


def _other_facts(a, b):
    """What else differs than the software."""
    in_b = _facts(b)
    for name, fact in _facts(a).items():
        if fact != in_b[name]:
            yield f"not the same {name}: '{fact}' in A, '{in_b[name]}' in B"
    for name, run in (("A", a), ("B", b)):
        if run.mismatches > 0:
            yield f"{name} had data that came back other than written"


def _other_queues(both):
    """ "auto" may have chosen another one; said once for all jobs."""
    return dict.fromkeys(f"not the same queue: '{one.queue}' in A, '{other.queue}' in B"
                         for one, other in both if one.queue != other.queue)


def compared(a, b):
    """Of two documents. Throws Refused."""
    comparison = Comparison(bench.Bench(a), bench.Bench(b))
    if not comparison.cells:
        raise Refused(f"{a.file} and {b.file} have no workload in common; nothing was compared. "
                      "Run headrace bench with the same --rw, --bs and --iodepth for both.")
    return comparison
