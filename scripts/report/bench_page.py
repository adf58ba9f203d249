# SPDX-License-Identifier: Apache-2.0
"""The page of a report of `headrace bench`: plots and tables."""
from . import bench, bench_plots
from .document import without_controls
from .page import Page, element, paragraph, table, warnings
from .words import bytes_text, interval_text, plural, seconds_text, three_digits

GB = 1e9


def _rate_cells(job):
    rate = job.rate()
    return [three_digits(rate.median / GB) + ("" if rate.bounded else "*"),
            interval_text(rate.low, rate.high, GB)]


def _quantile_text(latency, percent):
    return three_digits(latency.quantile_ms(percent)) if latency.says(percent) else "-"


def _few_rounds_note(run):
    if all(job.rate().bounded for job in run.measured()):
        return ""
    return (" * fewer than 6 rounds bound nothing: in brackets are the slowest and the fastest "
            "of them.")


def _verification(run):
    verification = run.document.at("verification")
    pages, stamps = verification.whole("pages"), verification.whole("stamps")
    compared = (f"{pages:,} pages of 4 KiB compared in full, {stamps:,} by their stamp while "
                "measuring")
    if run.mismatches > 0:
        first = verification.text("first_mismatch")
        return paragraph(f"MISMATCH: {run.mismatches:,} pages came back other than they were "
                         f"written ({compared}); the first: {first}", "bad")
    if pages + stamps == 0:
        return paragraph("not verified: nothing that was written was read back", "dim")
    return paragraph(f"verified: {compared}, all as written", "dim")


def _head(run):
    document = run.document
    took = (f"{document.text('date')}; {plural(document.whole('rounds'), 'round')} in "
            f"{seconds_text(document.number('seconds'))}, "
            f"{bytes_text(document.whole('written_bytes'))} written")
    return [element("p", element("code", document.text("command")), css="dim"),
            paragraph(took, "dim"), _verification(run), *warnings(document.texts("warnings"))]


def _summary(run, recommended):
    if not recommended:
        return [paragraph("Nothing was measured with the raw queue.", "none")]
    rows = []
    for pattern, job in recommended.items():
        latency = job.latency()
        rows.append([pattern, job.workload.shape_text(), *_rate_cells(job),
                     three_digits(latency.quantile_ms(50)), _quantile_text(latency, 99),
                     three_digits(job.cpu_seconds_per_gb())])
    head = ["pattern", "block x depth", "GB/s", "[95 %]", "p50 ms", "p99 ms", "CPU s/GB"]
    note = ("The recommended block size and depth of each pattern. GB is 10⁹ bytes, block sizes "
            "are powers of 2." + _few_rounds_note(run))
    return [table(head, rows, 2), paragraph(note, "dim")]


def _comparisons(run):
    rows = []
    for comparison in run.document.elements("comparisons"):
        ratio = bench.interval_of(comparison.at("ratio"))
        cpu = "-"
        if comparison.has("cpu_ratio"):
            cpu = three_digits(comparison.at("cpu_ratio").number("median"))
        rows.append([comparison.text("ours"), comparison.text("theirs"), f"{ratio.median:.3f}",
                     f"[{ratio.low:.3f}, {ratio.high:.3f}]", cpu, comparison.text("verdict")])
    if not rows:
        return []
    head = ["ours", "theirs", "throughput", "[95 %]", "CPU time", "verdict"]
    note = ("Ratios ours / theirs, pair by pair within rounds; of CPU time per byte, less is "
            "better.")
    return [table(head, rows, 2), paragraph(note, "dim")]


def _all_jobs(run):
    head = ["workload", "by", "GB/s", "[95 %]", "IOPS", "p50 ms", "p99", "p99.9", "max",
            "CPU s/GB", "share"]
    rows = []
    for job in run.jobs:
        if not job.samples:
            rows.append([job.name, "not reached", *[""] * (len(head) - 2)])
            continue
        latency = job.latency()
        median = three_digits(latency.quantile_ms(50)) if latency.count else "-"
        rows.append([job.name, job.queue, *_rate_cells(job), f"{round(job.iops()):,}", median,
                     _quantile_text(latency, 99), _quantile_text(latency, 99.9),
                     three_digits(latency.most_ms), three_digits(job.cpu_seconds_per_gb()),
                     f"{100 * job.fields.number('share_of_ceiling'):.0f} %"])
    note = ("Share: of the fastest that this run measured in that direction."
            + _few_rounds_note(run))
    return [table(head, rows, 2), paragraph(note, "dim")]


def _machine(run):
    document = run.document
    rows = [[drive.text("path"), f"{bench.drive_text(drive)}, "
             f"{bytes_text(drive.whole('file_bytes'))}"
             f"{', read only' if drive.flag('read_only') else ''}"] for drive in run.drives]
    for key in ("machine", "build"):
        rows += [[without_controls(name), fact]
                 for name, fact in bench.facts_of(document, key).items()]
    if document.text("fio version"):
        rows.append(["fio", document.text("fio version")])
    return [table([], rows, 2)] if rows else []


def page_of(document):
    run = bench.Bench(document)
    recommended = run.recommended()
    page = Page(bench.PROGRAM, " ".join(drive.text("path") for drive in run.drives))
    page.add(*_head(run))
    page.section("At a glance", _summary(run, recommended))
    page.section("Throughput by block size and depth", bench_plots.heat_maps(run, recommended))
    page.section("Latency by depth", bench_plots.latency_curves(run, recommended))
    page.section("Reading, writing, both", bench_plots.directions(run))
    page.section("Compared", _comparisons(run))
    page.section("All that was measured", _all_jobs(run))
    page.section("Drives, machine, build", _machine(run))
    return page.text()
