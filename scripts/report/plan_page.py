# SPDX-License-Identifier: Apache-2.0
"""The page of a report of `headrace plan`: plots, then all figures in tables."""
import math

from . import plan_plots
from .document import refuse_failed
from .page import Page, element, paragraph, table, warnings
from .words import bytes_text, number_text, plural, seconds_text

PROGRAM = "headrace plan"
PHASES = ("forward", "backward", "update")


def _ranks_per_node(document):
    return max(1, document.at("machine").whole("gpus"))


def _what(document):
    model, machine = document.at("model"), document.at("machine")
    frozen = model.whole("frozen_parameters")
    parameters = f"{model.whole('parameters'):,} parameters"
    if frozen:
        parameters += f", {frozen:,} of them frozen"
    gpus = machine.whole("gpus")
    device = (f"{plural(gpus, 'GPU')} each" if gpus
              else f"the CPU is the device, {plural(machine.whole('cpus'), 'CPU')}")
    micro = document.whole("micro_batches")
    work = (f"{micro} micro-batch{'' if micro == 1 else 'es'} of {document.whole('batch')} x "
            f"{document.whole('sequence')} tokens a rank and step")
    if document.flag("checkpointing"):
        work += ", activations recomputed (checkpointing)"
    return [[model.text("name"), f"{model.text('source')}: {parameters}"],
            [machine.text("name"), f"{machine.text('source')}: "
             f"{plural(document.whole('nodes'), 'node')}, {device}, "
             f"{plural(machine.whole('drives'), 'drive')}"],
            ["work", work]]


def _memory(document, plan):
    rows = [[row.text("what"), row.text("tier"), bytes_text(row.whole("bytes")),
             f"{row.whole('bytes'):,}"] for row in plan.elements("rows")]
    activations = document.number("activation_bytes_estimated")
    if activations:
        where = "device" if document.at("machine").whole("gpus") else "host (yours)"
        rows.append(["activations, 16-bit (an estimate)", where, bytes_text(activations),
                     f"{round(activations):,}"])
    for tier in ("host", "device", "nvme"):
        count = plan.whole(f"{tier}_bytes")
        rows.append([f"in all: {tier}", "", bytes_text(count), f"{count:,}"])
    return table(["what", "tier", "", "bytes"], rows, 2)


def _lanes(document, plan, prediction):
    busy = {phase: dict(prediction.at(phase).items("busy_seconds")) for phase in PHASES}
    names = list(busy["update"])
    rows = []
    for phase in PHASES:
        of = prediction.at(phase)
        seconds = [of.at("busy_seconds").number(name) for name in names]
        rows.append([phase, number_text(of.number("seconds"), 4),
                     *(number_text(one, 4) if one else "-" for one in seconds),
                     of.text("bound_by")])
    blank = [""] * (len(names) + 1)
    if prediction.number("hidden_seconds"):
        rows.append(["hidden", "-" + number_text(prediction.number("hidden_seconds"), 4), *blank])
    rows.append(["step", number_text(prediction.number("step_seconds"), 4), *blank])
    mode = ("deferred to the next forward" if plan.flag("deferred_updates")
            else "all within step()")
    if document.at("machine").whole("gpus"):
        mode += ", on the GPU" if prediction.flag("updates_on_device") else ", by the CPU"
    return [table(["seconds", "takes", *names, "bound by"], rows, 1),
            paragraph(f"The update is {mode}.", "dim")]


def free_batch_text(document, plan, prediction):
    tokens = prediction.number("free_tokens_per_micro_batch")
    deferred = plan.flag("deferred_updates")
    if tokens:
        now = document.whole("batch") * document.whole("sequence")
        text = (f"from {math.ceil(tokens):,} tokens per micro-batch on (now {now:,}), what "
                f"forward and backward move{' and the update' if deferred else ''} is hidden")
    else:
        text = "no tokens are needed to hide what forward and backward move: nothing"
    update = prediction.at("update").number("seconds")
    if update and not deferred:
        text += f"; the update ({seconds_text(update)}) never overlaps"
    return text


def _wear_text(document, prediction):
    ranks = _ranks_per_node(document)
    read = prediction.number("nvme_read_bytes_per_step") * ranks
    written = prediction.number("nvme_written_bytes_per_step") * ranks
    if not read + written:
        return "nothing is read or written"
    drives = document.at("machine").whole("drives")
    a_day = prediction.number("written_bytes_per_drive_and_day")
    text = (f"a node reads {bytes_text(read)} and writes {bytes_text(written)} a step; each of "
            f"{plural(drives, 'drive')} takes {number_text(a_day / 1e12)} TB a day")
    if not prediction.has("drive_years"):
        return text
    years = prediction.number("drive_years")
    lasts = f"{number_text(years * 365.25)} days" if years < 1 else f"{number_text(years)} years"
    return f"{text} and lasts {lasts}"


def _network_text(document, prediction):
    if document.whole("ranks") <= 1:
        return "none, one rank"
    sent = prediction.number("sent_bytes_per_step")
    busiest = prediction.number("most_sent_bytes_per_step") / sent
    text = (f"a rank sends {bytes_text(sent)} a step to the other ranks, and the busiest "
            f"{busiest:.3f} times as much")
    if document.whole("nodes") <= 1:
        return text
    count = prediction.number("network_bytes_per_step")
    average = count / prediction.number("step_seconds") / 1e9
    return (f"{text}; {bytes_text(count)} into each rank from other nodes, "
            f"{number_text(average)} GB/s on average")


def _rates(document):
    rows = [[name, f"{rate.number('value'):.4g}", rate.text("unit"), rate.text("source")]
            for name, rate in document.at("machine").items("rates_of_one_node")]
    return [table(["rate", "", "unit", "source"],
                  [[name, value, unit, source] for name, value, unit, source in rows], 1)]


def _changes(document):
    rows = [[change.text("change"), f"{change.number('tokens_per_second_ratio'):.2f} x",
             seconds_text(change.number("step_seconds"))]
            for change in document.elements("changes")]
    return [table(["one change", "tokens per second", "a step"], rows, 1)] if rows else []


def _head(document):
    yield element("p", element("b", document.text("summary")))
    yield from (paragraph(note, "dim") for note in document.texts("notes"))
    yield from warnings(document.texts("warnings"))
    if not document.flag("fits"):
        first, _, rest = document.text("refusal").partition("\n")
        yield paragraph(first)
        if rest.strip():
            yield element("pre", rest)


def page_of(document):
    if not document.has("summary"):
        refuse_failed(document)
    model, machine = document.at("model").text("name"), document.at("machine").text("name")
    page = Page(PROGRAM, f"{model} on {machine}")
    page.add(paragraph(f"{model} on {machine}", "dim"), *_head(document))
    if document.has("plan_of_one_rank"):
        plan, prediction = document.at("plan_of_one_rank"), document.at("prediction_of_one_rank")
        page.section("Lanes over time", plan_plots.lanes_over_time(document, prediction))
        page.section("Memory by tier over the step", plan_plots.memory(document, prediction))
        page.section("Step time against batch", plan_plots.step_by_batch(
            document, prediction, free_batch_text(document, plan, prediction)))
        page.section("Memory of one rank", [_memory(document, plan)])
        page.section("Seconds of one step", _lanes(document, plan, prediction))
        page.section("Free batch, wear, network", [table([], [
            ["free batch", free_batch_text(document, plan, prediction)],
            ["wear", _wear_text(document, prediction)],
            *([["store", prediction.at("store").text("text")]] if prediction.has("store") else []),
            ["network", _network_text(document, prediction)]], 2)])
        page.section("Tried, one change at a time", _changes(document))
    page.section("What was planned", [table([], _what(document), 2)])
    page.section("Rates of one node", _rates(document))
    return page.text()
