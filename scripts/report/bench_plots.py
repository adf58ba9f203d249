# SPDX-License-Identifier: Apache-2.0
"""The plots of a report of `headrace bench`, each with its caption, or a sentence instead."""
from . import plots
from .bench import PATTERNS
from .page import figure, paragraph
from .words import block_text, three_digits

GB = 1e9
QUANTILES = ((50, "p50", "-", plots.BLUE), (99, "p99", "--", plots.ORANGE),
             (99.9, "p99.9", ":", plots.GREEN))


def _left_out(patterns, sentence):
    return [paragraph(sentence.format(", ".join(patterns)), "none")] if patterns else []


def heat_maps(run, recommended):
    """Of the raw queue, a map per pattern."""
    figures, left_out = [], []
    for pattern, chosen in recommended.items():
        fastest = {}
        for job in run.of_raw_queue(pattern):
            place = job.workload.block_bytes, job.workload.depth
            if place not in fastest or job.rate().median > fastest[place]:
                fastest[place] = job.rate().median
        blocks = sorted({block for block, _ in fastest})
        depths = sorted({depth for _, depth in fastest})
        if len(blocks) < 2 or len(depths) < 2:
            left_out.append(pattern)
            continue
        svg = _heat_map(pattern, fastest, blocks, depths, chosen.workload)
        caption = (f"{pattern}: GB/s, median of rounds. ◆ is recommended: of those as fast as the "
                   "fastest, the one with the fewest bytes in flight.")
        figures.append(figure(svg, caption))
    if not figures and not left_out:
        return [paragraph("Nothing was measured.", "none")]
    return figures + _left_out(left_out, "No map of {}: it takes two block sizes and two depths.")


def _heat_map(pattern, fastest, blocks, depths, chosen):
    drawn, (axes,) = plots.new_figure(0.9 + 0.75 * len(depths), 0.8 + 0.36 * len(blocks))
    gb = [[fastest.get((block, depth), float("nan")) / GB for depth in depths] for block in blocks]
    cells = axes.pcolormesh(gb, cmap="viridis", edgecolors="white")
    for row, block in enumerate(blocks):
        for column, depth in enumerate(depths):
            rate = fastest.get((block, depth))
            text = "–" if rate is None else three_digits(rate / GB)
            if (block, depth) == (chosen.block_bytes, chosen.depth):
                text += " ◆"
            share = 0 if rate is None else cells.norm(rate / GB)
            ink = "black" if rate is None or share > 0.55 else "white"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink)
    axes.set_xticks([column + 0.5 for column in range(len(depths))], map(str, depths))
    axes.set_yticks([row + 0.5 for row in range(len(blocks))], map(block_text, blocks))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("block")
    axes.grid(False)
    return plots.svg_of(drawn, f"map-{pattern}",
                        f"Heat map of throughput of {pattern} by block size and depth")


def latency_curves(run, recommended):
    """At each pattern's recommended block size."""
    figures, left_out = [], []
    for pattern, chosen in recommended.items():
        others = [job for job in run.measured() if job.latency().count > 0
                  and job.workload._replace(depth=chosen.workload.depth) == chosen.workload]
        others.sort(key=lambda job: job.workload.depth)
        if len(others) < 2:
            left_out.append(pattern)
            continue
        title = f"{pattern} at {block_text(chosen.workload.block_bytes)}"
        caption = (f"{title}: latency of a request by requests in flight, and the GB/s that these "
                   "reach.")
        figures.append(figure(_latency_curve(pattern, title, others), caption))
    if not figures and not left_out:
        return [paragraph("Nothing was measured.", "none")]
    return figures + _left_out(left_out, "No curve of {}: it takes two depths at the recommended "
                                         "block size.")


def _latency_curve(pattern, title, jobs):
    # Depths stand at equal distances, with what each reached below it: towards the drive's limit
    # throughput hardly grows, and points by throughput would lie on each other.
    drawn, (axes,) = plots.new_figure(4.8, 3)
    for percent, name, line, colour in QUANTILES:
        axes.plot([max(job.latency().quantile_ms(percent), 1e-6) for job in jobs], line,
                  color=colour, marker="o", label=name)
    plots.take_logarithms(axes.set_yscale, axes.yaxis)
    axes.set_ylabel("ms")
    axes.set_xticks(range(len(jobs)), [f"{job.workload.depth}\n"
                                       f"{three_digits(job.rate().median / GB)} GB/s"
                                       for job in jobs])
    axes.set_xlabel("requests in flight")
    axes.legend()
    return plots.svg_of(drawn, f"latency-{pattern}", f"Latency by depth of {title}")


def directions(run):
    """Reading, writing and both at once, by whoever was measured: the fastest of each."""
    fastest = {}
    for job in run.measured():
        workload = job.workload
        if workload.pattern.startswith("rand"):
            continue
        key = workload.block_bytes, workload.mover_text(), workload.pattern
        if key not in fastest or job.rate().median > fastest[key].rate().median:
            fastest[key] = job
    if len({pattern for _, _, pattern in fastest}) < 2:
        return [paragraph("No comparison of reading with writing: one of them alone was measured "
                          "in sequence.", "none")]
    jobs = [fastest[key] for key in sorted(fastest, key=lambda key: (
        key[0], key[1] != "headrace", key[1], PATTERNS.index(key[2])))]
    caption = ("GB/s at each block size, of the fastest depth (behind the x). rw is split into "
               "what it read and what it wrote.")
    return [figure(_directions(jobs), caption)]


def _directions(jobs):
    drawn, (axes,) = plots.new_figure(9, 0.9 + 0.24 * len(jobs))
    shares = [job.shares() for job in jobs]
    places = range(len(jobs))
    axes.barh(places, [read for read, _ in shares], color=plots.BLUE, label="read")
    axes.barh(places, [written for _, written in shares], left=[read for read, _ in shares],
              color=plots.ORANGE, label="written")
    for place, (read, written) in zip(places, shares):
        parts = (f" ({three_digits(read)} + {three_digits(written)})"
                 if jobs[place].workload.pattern == "rw" else "")
        axes.annotate(three_digits(read + written) + parts, (read + written, place), (4, 0),
                      textcoords="offset points", va="center")
    axes.set_yticks(places, [f"{job.workload.mover_text()} {job.workload.pattern} "
                             f"{job.workload.shape_text()}" for job in jobs])
    axes.invert_yaxis()
    axes.set_xlim(right=1.2 * max(read + written for read, written in shares))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("GB/s")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    return plots.svg_of(drawn, "directions",
                        "Throughput of reading, of writing and of both at once")
