# SPDX-License-Identifier: Apache-2.0
"""The plots of a report of `headrace plan`, each with its caption; none where there is nothing."""
from . import plots
from .page import figure
from .words import bytes_text, seconds_text

GIB = 1 << 30


def _spans(prediction):
    return [(span.text("lane"), span.number("begin_seconds"), span.number("end_seconds"))
            for span in prediction.elements("timeline")]


def _update_begin(document, prediction):
    """Behind the passes, or with them."""
    if document.at("plan_of_one_rank").flag("deferred_updates"):
        return 0.0
    return max((end for _, _, end in _spans(prediction)), default=0.0)


def _end(document, prediction):
    update = prediction.at("update").number("seconds")
    return max([_update_begin(document, prediction) + update]
               + [end for _, _, end in _spans(prediction)])


def lanes_over_time(document, prediction):
    end = _end(document, prediction)
    if not end:
        return []
    update = prediction.at("update")
    lanes = [name for name, _ in update.items("busy_seconds")]
    drawn, (axes,) = plots.new_figure(9, 0.8 + 0.28 * len(lanes))
    for place, lane in enumerate(lanes):
        spans = [(begin, max(last - begin, end / 2000))
                 for name, begin, last in _spans(prediction) if name == lane]
        axes.broken_barh(spans, (place - 0.4, 0.8), color=plots.BLUE)
        busy = update.at("busy_seconds").number(lane)
        if busy:
            begin = _update_begin(document, prediction)
            axes.broken_barh([(begin, update.number("seconds"))], (place - 0.4, 0.8),
                             color=plots.ORANGE)
            if update.number("seconds") > end / 8:  # else there is no room for words
                axes.text(begin + end / 200, place, seconds_text(busy), va="center",
                          color="white")
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.set_xlabel("seconds")
    axes.grid(axis="y", visible=False)
    micro = document.whole("micro_batches")
    caption = (f"The first of {micro} micro-batch{'' if micro == 1 else 'es'} (blue), and the "
               "update (orange), in which lanes take turns tile by tile: beside each, how long it "
               "works.")
    return [figure(plots.svg_of(drawn, "lanes", "Lanes over the time of one step"), caption)]


def activations_over_time(document, prediction):
    """(second, bytes): forward fills, backward empties; a deferred update is between them."""
    passes = document.whole("micro_batches")
    forward, backward = (prediction.at(phase).number("seconds") / passes
                         for phase in ("forward", "backward"))
    beside = 0.0
    if document.at("plan_of_one_rank").flag("deferred_updates"):
        hidden = prediction.number("hidden_seconds")
        beside = max(0.0, prediction.at("update").number("seconds") - hidden)
    end = _end(document, prediction)
    turn = min(end, forward + beside)
    most = document.number("activation_bytes_estimated")
    return [(0, 0), (min(end, forward), most), (turn, most), (min(end, turn + backward), 0),
            (end, 0)]


def memory(document, prediction):
    plan, machine = document.at("plan_of_one_rank"), document.at("machine")
    gpus = machine.whole("gpus")
    ranks = max(1, gpus)
    panels = [
        _memory_panel(document, prediction, tier, plan.whole(f"{tier.lower()}_bytes"), limit,
                      with_activations)
        for tier, limit, with_activations in (
            ("device", machine.whole("gpu_memory_bytes"), gpus > 0),
            ("host", machine.whole("host_bytes") / ranks, gpus == 0),
            ("NVMe", machine.whole("nvme_bytes") / ranks, False))]
    caption = ("What one rank allocates, from the first step to the last (blue), and with "
               "activations of the first micro-batch, an estimate (orange, dashed). Red: the "
               "rank's share of the machine, a line where it is near.")
    shown = [panel for panel in panels if panel is not None]
    return [*shown[:-1], figure(shown[-1], caption)] if shown else []


def _memory_panel(document, prediction, tier, allocated, limit, with_activations):
    curve = activations_over_time(document, prediction)
    most = allocated + (max(held for _, held in curve) if with_activations else 0)
    if not most:
        return None
    drawn, (axes,) = plots.new_figure(9, 1.7)
    axes.plot([0, curve[-1][0]], [allocated / GIB] * 2, color=plots.BLUE)
    if with_activations:
        axes.plot([second for second, _ in curve], [(allocated + held) / GIB for _, held in curve],
                  "--", color=plots.ORANGE)
    # A limit that is far above would press all else to the ground.
    if 0 < limit <= 3 * most:
        axes.axhline(limit / GIB, color=plots.RED, linestyle=":")
    if limit:
        axes.set_title(f"limit {bytes_text(limit)}", loc="right", color=plots.RED, fontsize=9)
    axes.set_title(tier, loc="left", fontsize=9)
    axes.set_xlim(0, curve[-1][0] or 1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GiB")
    axes.set_xlabel("seconds")
    return plots.svg_of(drawn, f"memory-{tier}", f"Memory over one step: {tier}")


def step_by_batch(document, prediction, free_batch):
    points = [(one.number("tokens_per_micro_batch"), one.number("step_seconds"),
               one.number("compute_seconds")) for one in document.elements("steps_by_batch")]
    if len(points) < 2:
        return []
    drawn, (axes,) = plots.new_figure(9, 3)
    tokens, steps, computing = zip(*points)
    axes.plot(tokens, steps, "-o", color=plots.BLUE, label="step")
    axes.plot(tokens, computing, "--o", color=plots.ORANGE, label="computing alone")
    free = prediction.number("free_tokens_per_micro_batch")
    if 0 < free <= max(tokens):
        axes.axvline(free, color=plots.RED, linestyle=":", label="free batch")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens per micro-batch and rank")
    axes.set_ylabel("seconds")
    axes.legend()
    svg = plots.svg_of(drawn, "batch", "Seconds per step against tokens per micro-batch")
    return [figure(svg, "Seconds of a step and of its computing alone, up to the largest "
                        f"micro-batch tried that fits. Free batch: {free_batch}.")]
