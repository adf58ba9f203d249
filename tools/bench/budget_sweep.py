#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains under host budgets from the smallest that a plan accepts to all in memory.

  tools/bench/budget_sweep.py --nvme DIR [--rounds N] [--steps N] [--seq N] [--budgets N]
                              [--svg FILE] [--build FOLDER] [--json FILE]

Prints, budget by budget, what a step took (median, least and most of the rounds) beside what
`headrace plan` predicts from this machine's ceilings, the bytes held, and the bytes moved per
parameter and step; --svg draws both. Rounds go up and down in turn. Wants an otherwise idle
machine. Ends with 1 where more memory moves more bytes, or a run holds more than its budget.
"""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

from measured import NVME, Tools, add_options, budget_of, mean, median

SHAPE = {"layers": 16, "hidden": 512, "heads": 8}
WIDTH, LEFT, RIGHT = 760, 64, 740
SECONDS, BYTES = (28, 240), (280, 380)  # top and bottom of the two plots
MEASURED, PREDICTED = "#1b6ca8", "#d1495b"


class Axes:
    def __init__(self, xs, most, top_bottom):
        self.least_x, self.most_x, self.most = min(xs), max(xs), most
        self.top, self.bottom = top_bottom

    def x(self, value):
        return LEFT + (RIGHT - LEFT) * (value - self.least_x) / (self.most_x - self.least_x)

    def y(self, value):
        return self.bottom - (self.bottom - self.top) * value / self.most

    def grid(self, title, unit):
        yield f'<text x="{LEFT}" y="{self.top - 10}">{title}</text>'
        for i in range(5):
            value = self.most * i / 4
            yield (f'<path d="M{LEFT} {self.y(value):.1f}H{RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{self.y(value) + 4:.1f}" text-anchor="end">'
                   f'{value:{unit}}</text>')

    def line(self, points, colour, dashed=False):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        return (f'<polyline points="{path}" fill="none" stroke="{colour}" '
                f'stroke-width="1.6"{dash}/>')


def draw(rows):
    xs = [row["held_mib"] for row in rows]
    most = max(max(row["most"], row["predicted"]) for row in rows)
    seconds = Axes(xs, 1.1 * most, SECONDS)
    moved = Axes(xs, 1.1 * max(row["moved"] for row in rows), BYTES)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 424" '
             'font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="424" fill="white"/>',
             *seconds.grid("seconds per step", ".2f"),
             *moved.grid("bytes read and written on NVMe per parameter and step", ".0f"),
             seconds.line([(row["held_mib"], row["measured"]) for row in rows], MEASURED),
             seconds.line([(row["held_mib"], row["predicted"]) for row in rows], PREDICTED, True),
             moved.line([(row["held_mib"], row["moved"]) for row in rows], MEASURED)]
    for row in rows:
        x = seconds.x(row["held_mib"])
        lines.append(f'<path d="M{x:.1f} {seconds.y(row["least"]):.1f}'
                     f'V{seconds.y(row["most"]):.1f}" stroke="{MEASURED}"/>'
                     f'<circle cx="{x:.1f}" cy="{seconds.y(row["measured"]):.1f}" r="3" '
                     f'fill="{MEASURED}"/>')
        lines.append(f'<circle cx="{x:.1f}" cy="{moved.y(row["moved"]):.1f}" r="3" '
                     f'fill="{MEASURED}"/>')
    for i in range(5):
        value = min(xs) + (max(xs) - min(xs)) * i / 4
        lines.append(f'<text x="{seconds.x(value):.1f}" y="398" text-anchor="middle">'
                     f'{value:.0f}</text>')
    lines.append(f'<text x="{(LEFT + RIGHT) / 2}" y="416" text-anchor="middle">'
                 'host memory of the engine, MiB</text>'
                 f'<text x="{RIGHT}" y="18" text-anchor="end">'
                 f'<tspan fill="{MEASURED}">measured: median, least and most</tspan>'
                 f'<tspan fill="{PREDICTED}" dx="12">predicted</tspan></text>')
    return "\n".join(lines) + "\n</svg>\n"


def ceilings(tools):
    rates = tools.rates()
    return {**rates, "flops": tools.flops(SHAPE, 1, rates)}


def measure(tools, asked):
    before = ceilings(tools)
    shares = [i / (asked.budgets - 1) for i in range(asked.budgets)]
    settings = [budget_of(tools, SHAPE, 1, NVME, share, before) for share in shares]
    runs = [[] for _ in settings]
    for number in range(asked.rounds):
        order = range(len(settings)) if number % 2 == 0 else reversed(range(len(settings)))
        for i in order:
            runs[i].append(tools.train(SHAPE, 1, settings[i], asked.steps))
            print(f"round {number + 1}  budget {i + 1}  {median(runs[i][-1], 'seconds'):.3f} s",
                  file=sys.stderr, flush=True)
    # What moved the drive or memory meanwhile is in the prediction, too.
    rates = mean(before, ceilings(tools))
    return [row_of(tools.plan(SHAPE, 1, chosen, rates), chosen, all_runs)
            for chosen, all_runs in zip(settings, runs)]


def row_of(plan, chosen, runs):
    seconds = [median(run, "seconds") for run in runs]
    parameters = runs[0]["parameters"]
    # Whole runs: a deferred update's bytes are those of the step that it is met in.
    moved = [sum(step["nvme_read_bytes"] + step["nvme_written_bytes"] for step in run["steps"]) /
             len(run["steps"]) / parameters for run in runs]
    return {"budget": int(chosen[-1].split("=")[1]), "measured": statistics.median(seconds),
            "least": min(seconds), "most": max(seconds),
            "predicted": plan["prediction_of_one_rank"]["step_seconds"],
            "held_mib": runs[0]["memory"]["engine_bytes"] / 2**20,
            "moved": statistics.median(moved)}


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add_options(options, rounds=3)
    options.add_argument("--budgets", type=int, default=9)
    options.add_argument("--svg", type=pathlib.Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as work:
        rows = measure(Tools(asked, pathlib.Path(work)), asked)
    print(f"{'budget MiB':>10} {'held MiB':>9} {'measured s':>10} {'least':>6} {'most':>6} "
          f"{'predicted s':>11} {'bytes moved':>11}")
    for row in rows:
        print(f"{row['budget'] / 2**20:10.1f} {row['held_mib']:9.1f} {row['measured']:10.3f} "
              f"{row['least']:6.3f} {row['most']:6.3f} {row['predicted']:11.3f} "
              f"{row['moved']:11.2f}")
    if asked.svg:
        asked.svg.write_text(draw(rows))
    if asked.json:
        asked.json.write_text(json.dumps({"schema_version": 1, "rows": rows}, indent=2))
    rises = any(b["moved"] > 1.001 * a["moved"] for a, b in zip(rows, rows[1:]))
    over = any(row["held_mib"] * 2**20 > row["budget"] for row in rows)
    sys.exit(1 if rises or over else 0)


if __name__ == "__main__":
    main()
