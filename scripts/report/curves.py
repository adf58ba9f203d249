# SPDX-License-Identifier: Apache-2.0
"""Plots of runs of train_gpt, each a file of its own: losses, and steps under host budgets."""
from . import plots

COLOURS = (plots.BLUE, plots.RED, plots.GREEN, plots.ORANGE)
MEAN_OF = 10


def losses(runs):
    """Of {name: report of train_gpt}. Each point is the mean of ten steps."""
    drawn, (axes,) = plots.new_figure(7.6, 3.8)
    for number, (name, report) in enumerate(runs.items()):
        values = [step.number("loss") for step in report.elements("steps")]
        if len(values) < MEAN_OF:
            report.at("steps").refuse(f"has {len(values)} steps, and a point takes {MEAN_OF}")
        begins = range(0, len(values) - MEAN_OF + 1, MEAN_OF)
        axes.plot([begin + MEAN_OF / 2 for begin in begins],
                  [sum(values[begin:begin + MEAN_OF]) / MEAN_OF for begin in begins],
                  color=COLOURS[number % len(COLOURS)], linewidth=1.4, label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.legend()
    return plots.svg_of(drawn, "losses", "Losses of " + ", ".join(runs))


def losses_text(runs):
    """The held-out loss of each run, and how far it is from the first one's."""
    held_out = {name: report.number("eval_loss") for name, report in runs.items()}
    first = next(iter(held_out.values()))
    return "".join(f"{name}: held-out loss {loss:.4f} ({loss - first:+.4f})\n"
                   for name, loss in held_out.items())


def budgets(sweep):
    """Of a report of tools/bench/budget_sweep.py: seconds of a step, and bytes moved."""
    rows = sweep.elements("rows")
    held, measured, least, most, predicted, moved = (
        [row.number(key) for row in rows]
        for key in ("held_mib", "measured", "least", "most", "predicted", "moved"))
    drawn, (above, below) = plots.new_figure(7.6, 4.6, rows=2)
    above.errorbar(held, measured, [[one - low for one, low in zip(measured, least)],
                                    [high - one for one, high in zip(measured, most)]],
                   color=plots.BLUE, marker="o", label="measured: median, least and most")
    above.plot(held, predicted, "--", color=plots.RED, label="predicted")
    above.set_ylabel("seconds per step")
    above.legend()
    below.plot(held, moved, "-o", color=plots.BLUE)
    below.set_ylabel("bytes read and written\non NVMe per parameter\nand step")
    below.set_xlabel("host memory of the engine, MiB")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    return plots.svg_of(drawn, "budgets", "Seconds per step and bytes moved over the host budget")
