# SPDX-License-Identifier: Apache-2.0
"""What a report of `headrace bench` holds, as the page and the comparison need it."""
import statistics
from typing import NamedTuple

from .words import block_text

PROGRAM = "headrace bench"
PATTERNS = ("read", "write", "randread", "randwrite", "rw")


class Interval(NamedTuple):
    median: float
    low: float   # holds the true median with 95 % where `bounded`, else the least
    high: float
    bounded: bool
    count: int


def interval_of(fields):
    return Interval(fields.number("median"), fields.number("low"), fields.number("high"),
                    fields.flag("bounded"), fields.whole("count"))


class Workload(NamedTuple):
    pattern: str
    block_bytes: int
    depth: int
    jobs: int
    submit_batch: int
    register_buffers: bool
    queue: str
    mover: str
    fio_engine: str

    def mover_text(self):
        return f"fio {self.fio_engine}" if self.mover == "fio" else self.mover

    def shape_text(self):
        return f"{block_text(self.block_bytes)} x {self.depth}"


def _workload_of(fields):
    workload = Workload(
        fields.text("pattern"), fields.whole("block_bytes"), fields.whole("depth"),
        fields.whole("jobs"), fields.whole("submit_batch"), fields.flag("register_buffers"),
        fields.text("queue"), fields.text("mover"), fields.text("fio_engine"))
    if workload.pattern not in PATTERNS:
        fields.at("pattern").refuse(f"is '{workload.pattern}', and no pattern")
    return workload


class Sample(NamedTuple):
    seconds: float
    read_bytes: int
    written_bytes: int
    requests: int

    def rate(self):
        return (self.read_bytes + self.written_bytes) / self.seconds


def _sample_of(fields):
    seconds = fields.number("seconds")
    # From one page at the speed of memory to a year.
    if not 1e-9 <= seconds <= 3.2e7:
        fields.at("seconds").refuse(f"is {seconds:g}, as no sample takes")
    sample = Sample(seconds, fields.whole("read_bytes"), fields.whole("written_bytes"),
                    fields.whole("reads") + fields.whole("writes"))
    if sample.read_bytes + sample.written_bytes == 0:
        fields.refuse("moved no byte")
    return sample


class Job:
    """One workload and its samples; none where the run was ended before its first round."""

    def __init__(self, fields):
        self.fields = fields
        self.name = fields.text("jobname")
        self.workload = _workload_of(fields.at("workload"))
        self.queue = fields.text("queue")
        self.samples = [_sample_of(sample) for sample in fields.elements("samples")]

    def rates(self):
        """Bytes per second, per round."""
        return [sample.rate() for sample in self.samples]

    def rate(self):
        return interval_of(self.fields.at("bytes_per_second"))

    def cpu_seconds_per_gb(self):
        return self.fields.at("cpu_seconds_per_gb").number("median")

    def iops(self):
        return statistics.median(sample.requests / sample.seconds for sample in self.samples)

    def shares(self):
        """GB/s that were read and written, of the median of both."""
        read = sum(sample.read_bytes for sample in self.samples)
        moved = read + sum(sample.written_bytes for sample in self.samples)
        rate = self.rate().median / 1e9
        return rate * read / moved, rate - rate * read / moved

    def latency(self):
        return Latency(self.fields.at("latency_ns"))


class Latency:
    """Of all requests of a job, read or written."""

    def __init__(self, fields):
        self.fields = fields
        self.count = fields.whole("N")
        self.most_ms = fields.number("max") / 1e6

    def quantile_ms(self, percent):
        return self.fields.at("percentile").number(f"{percent:.6f}") / 1e6

    def says(self, percent):
        """Whether a request lies beyond it: 99 % take a hundred, 99.9 % a thousand."""
        return (1 - percent / 100) * self.count >= 0.9995


class Bench:
    def __init__(self, document):
        self.document = document
        self.jobs = [Job(fields) for fields in document.elements("jobs")]
        self.drives = document.elements("drives")
        self.mismatches = document.at("verification").whole("mismatches")

    def measured(self):
        return [job for job in self.jobs if job.samples]

    def of_raw_queue(self, pattern):
        return [job for job in self.measured()
                if job.workload.mover == "headrace" and job.workload.pattern == pattern]

    def recommended(self):
        """Per pattern that the raw queue was measured with: the job that is recommended."""
        indices = {name: self.document.at("recommended_jobs").whole(name)
                   for name, _ in self.document.items("recommended_jobs")}
        for pattern, index in indices.items():
            job = self.document.element("jobs", index)
            if pattern not in PATTERNS or not self.jobs[index].samples:
                job.refuse(f"is recommended for {pattern}, and was not measured")
        return {pattern: self.jobs[indices[pattern]] for pattern in PATTERNS if pattern in indices}


def facts_of(document, key):
    return {name: document.at(key).text(name) for name, _ in document.items(key)}


def drive_text(drive):
    """What follows its path."""
    text = drive.text("model") + ", " if drive.text("model") else ""
    text += drive.text("file_system") or "file system unknown"
    if drive.flag("memory_backed"):
        return text + ", in memory"
    return text + (", O_DIRECT" if drive.flag("direct") else ", no O_DIRECT")
