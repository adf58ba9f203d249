# SPDX-License-Identifier: Apache-2.0
"""Reports of `headrace bench`, made up, for the tests of scripts/report."""
import copy
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MI = 1 << 20


def run_report(*words, python=sys.executable):
    """scripts/report as a user starts it."""
    return subprocess.run([python, ROOT / "scripts" / "report", *words], capture_output=True,
                          text=True, timeout=120)


def interval(values):
    values = sorted(values)
    return {"median": statistics.median(values), "low": values[0], "high": values[-1],
            "least": values[0], "most": values[-1], "bounded": len(values) > 5,
            "count": len(values)}


def job(pattern, block, depth, gb_per_second, mover="headrace"):
    """A second of each rate, half of it written where the pattern is rw."""
    read = {"read": 1.0, "write": 0.0, "rw": 0.5}[pattern]
    samples = []
    for number, gb in enumerate(gb_per_second):
        moved = round(gb * 1e9)
        samples.append({"round": number, "seconds": 1.0, "cpu_seconds": 0.01 * gb,
                        "read_bytes": round(moved * read),
                        "written_bytes": round(moved * (1 - read)),
                        "reads": round(moved * read) // block,
                        "writes": round(moved * (1 - read)) // block})
    usual = round(block * depth / gb_per_second[0])
    name = f"{pattern} {block // MI}M x {depth}"
    return {
        "jobname": name if mover == "headrace" else f"{name}, fio io_uring",
        "workload": {"pattern": pattern, "block_bytes": block, "depth": depth, "jobs": 1,
                     "submit_batch": 2, "register_buffers": True, "queue": "auto",
                     "mover": mover, "fio_engine": "io_uring" if mover == "fio" else ""},
        "queue": "io_uring" if mover == "fio" else "uring",
        "latency_ns": {"min": usual, "max": 9 * usual, "mean": usual, "N": 5000,
                       "percentile": {"50.000000": usual, "99.000000": 3 * usual,
                                      "99.900000": 5 * usual}},
        "bytes_per_second": interval([gb * 1e9 for gb in gb_per_second]),
        "cpu_seconds_per_gb": interval([0.01 for _ in gb_per_second]),
        "share_of_ceiling": 0.987,
        "samples": samples,
    }


def bench_report():
    """Reading at 1 and 4 MiB and depths of 1, 4 and 16; writing and both at one, beside fio."""
    jobs = []
    for number, (block, depth) in enumerate((b * MI, d) for b in (1, 4) for d in (1, 4, 16)):
        first = 2.0 + 0.7 * number
        jobs.append(job("read", block, depth, [first + 0.01 * i for i in range(6)]))
    jobs.append(job("write", 4 * MI, 4, [3.1, 3.2, 3.3]))
    jobs.append(job("rw", 4 * MI, 4, [4.1, 4.2, 4.3, 4.4, 4.5, 4.6]))
    jobs.append(job("rw", 4 * MI, 4, [4.2, 4.3, 4.4, 4.5, 4.6, 4.7], mover="fio"))
    ratio = interval([0.976, 0.977, 0.977, 0.978, 0.978, 0.979])
    return {
        "schema_version": 1,
        "program": "headrace bench",
        "version": "0.1.0",
        "command": "headrace bench --compare fio /mnt/nvme0",
        "date": "2026-01-02T03:04:05Z",
        "machine": {"cpu": "Some CPU", "kernel": "Linux 6.1"},
        "build": {"headrace": "0.1.0"},
        "drives": [{"path": "/mnt/nvme0", "file_system": "ext4", "model": "ACME 990",
                    "direct": True, "memory_backed": False, "read_only": False,
                    "file_bytes": 4 << 30}],
        "fio version": "fio-3.33",
        "rounds": 6,
        "seconds": 42.0,
        "written_bytes": 8 << 30,
        "jobs": jobs,
        "comparisons": [{"ours": "rw 4M x 4", "theirs": "rw 4M x 4, fio io_uring",
                         "ours_index": 7, "theirs_index": 8, "ratio": ratio,
                         "cpu_ratio": interval([0.5] * 6), "resolved": True,
                         "verdict": "slower by 2.3 %"}],
        "verification": {"pages": 1234567, "stamps": 89, "mismatches": 0, "first_mismatch": ""},
        "recommended_jobs": {"read": 5, "write": 6, "rw": 7},
        "warnings": ["the file is smaller than the drive's cache"],
    }


def changed(report, path, value):
    """A copy with another value at "jobs/0/samples/0/seconds"; None takes the field away."""
    made = copy.deepcopy(report)
    at = made
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    for key in parents:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return made


def scaled(report, pattern, by):
    """What has `pattern` is `by` times as fast."""
    made = copy.deepcopy(report)
    for one in made["jobs"]:
        if one["workload"]["pattern"] == pattern:
            for sample in one["samples"]:
                sample["seconds"] /= by
    return made


def write(folder, name, report):
    path = pathlib.Path(folder) / name
    path.write_text(report if isinstance(report, str) else json.dumps(report), encoding="utf-8")
    return str(path)
