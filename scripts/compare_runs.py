# SPDX-License-Identifier: Apache-2.0
"""Compares two reports of train_gpt: the same training, placed differently.

    compare_runs.py NVME.json MEMORY.json            prints a table; ends 1 where results differ
    compare_runs.py --write-settings FOLDER NVME_PATH   writes the settings of both runs
"""
import json
import math
import os
import statistics
import sys


def settings(nvme_path):
    common = {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "gradient_accumulation_steps": 1}
    place = {"device": "nvme", "nvme_path": nvme_path}
    nvme = dict(common)
    nvme["zero_optimization"] = {"offload_optimizer": place, "offload_param": place}
    # A small model: small tiles and few slots keep the engine's memory well below the model's
    # state.
    nvme["headrace"] = {"tile_elements": 131072, "update_slots": 3}
    return {"nvme": nvme, "memory": common}


def write_settings(folder, nvme_path):
    for name, content in settings(nvme_path).items():
        with open(os.path.join(folder, f"{name}.settings.json"), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")


def read_report(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def size(count):
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.1f} {unit}"
    return f"{count:.0f} B"


def number(value, digits=4):
    return "-" if value is None else f"{value:.{digits}f}"


def per_parameter_and_step(report, key):
    # Of the steps in the middle: where updates are deferred, the first step has none behind it.
    moved = statistics.median([step[key] for step in report["steps"]] or [0])
    return moved / max(report["parameters"], 1)


def seconds(report, key):
    steps = report["steps"]
    return sum(step[key] for step in steps) / max(len(steps), 1)


def lane(report, name):
    return f"{report['lanes'][name]['seconds']:.1f}"


def tier_bytes(report, tier):
    return size(report["plan_totals"][f"{tier}_bytes"])


def above_baseline(report):
    memory = report["memory"]
    return memory["peak_rss_bytes"] - memory["baseline_rss_bytes"]


def state_bytes(report):
    """What training keeps for every parameter, read off the run that holds all of it in memory."""
    kinds = ("parameters", "gradients", "optimizer state")
    return sum(row["bytes"] for row in report["plan"] if row["what"] in kinds)


def rows(nvme, memory):
    both = (nvme, memory)
    losses = lambda index: [number(r["steps"][index]["loss"]) for r in both]
    yield "Losses, nats per byte", None
    yield "first step", losses(0)
    yield f"last step, {len(nvme['steps'])}", losses(-1)
    yield "held out", [number(r["eval_loss"]) for r in both]
    yield "unigram entropy of the text", [number(r["text"]["unigram_entropy_nats"]) for r in both]
    yield "Bytes per tier, as planned", None
    for tier in ("device", "host", "nvme"):
        yield tier, [tier_bytes(r, tier) for r in both]
    yield "Moved per parameter and step, bytes", None
    for label, key in (("NVMe read", "nvme_read_bytes"), ("NVMe written", "nvme_written_bytes")):
        yield label, [number(per_parameter_and_step(r, key), 2) for r in both]
        planned = [r["plan_totals"][f"{key}_per_step"] / r["parameters"] for r in both]
        yield "  planned", [number(value, 2) for value in planned]
    yield "Memory", None
    yield "engine, planned", [size(r["memory"]["planned_bytes"]) for r in both]
    yield "engine, held", [size(r["memory"]["engine_bytes"]) for r in both]
    yield "process, peak above baseline", [size(above_baseline(r)) for r in both]
    yield "Seconds per step", [number(seconds(r, "seconds"), 3) for r in both]
    for label in ("forward", "backward", "update"):
        yield label, [number(seconds(r, label + "_s"), 3) for r in both]
    yield "Seconds per lane, whole run", None
    for label, key in (("forward and backward", "trainer"),
                       ("waiting for parameters", "gather_wait"),
                       ("NVMe read", "nvme_read"), ("NVMe write", "nvme_write"),
                       ("update arithmetic", "update")):
        yield label, [lane(r, key) for r in both]
    yield "bound by", [r["lanes"]["bound_by"].replace("_", " ") for r in both]


def print_table(nvme, memory):
    print(f"{nvme['parameters'] / 1e6:.1f} M parameters, {len(nvme['steps'])} steps, "
          f"text of {size(nvme['text']['bytes'])}")
    print(f"{'':32}{'on NVMe':>14}{'in memory':>14}")
    for label, values in rows(nvme, memory):
        title = values is None or label == "Seconds per step"
        cells = "".join(f"{value:>14}" for value in values or [])
        print(f"{label if title else '  ' + label:32}{cells}")


def faults(nvme, memory):
    """Why the two are not the same result; empty where they are."""
    found = []
    for key in ("parameters", "optimizer_state"):
        first, second = nvme["hash"][key], memory["hash"][key]
        if not first or first != second:
            found.append(f"{key.replace('_', ' ')}: {first} on NVMe, {second} in memory")
    for index, (a, b) in enumerate(zip(nvme["steps"], memory["steps"])):
        if a["loss"] != b["loss"] or not math.isfinite(a["loss"]):
            found.append(f"loss of step {index + 1}: {a['loss']} on NVMe, {b['loss']} in memory")
            break
    for key in ("eval_loss", "parameters"):
        if nvme[key] != memory[key]:
            found.append(f"{key}: {nvme[key]} on NVMe, {memory[key]} in memory")
    if len(nvme["steps"]) != len(memory["steps"]) or not nvme["steps"]:
        found.append(f"steps: {len(nvme['steps'])} on NVMe, {len(memory['steps'])} in memory")
    return found


def compare(nvme, memory):
    print_table(nvme, memory)
    ratio = state_bytes(memory) / max(nvme["memory"]["engine_bytes"], 1)
    print(f"\nThe model's state is {size(state_bytes(memory))}, {ratio:.1f} times the memory"
          " that the engine held with it on NVMe.")
    if nvme["eval_loss"] is not None:
        gain = nvme["text"]["unigram_entropy_nats"] - nvme["eval_loss"]
        side = 'below' if gain >= 0 else 'above'
        print(f"The held-out loss is {abs(gain):.2f} nats {side} the unigram entropy"
              " (what knowing only how frequent each byte is would reach).")
    print()
    for label, key in (("parameters", "parameters"), ("optimizer state", "optimizer_state")):
        for place, report in (("on NVMe", nvme), ("in memory", memory)):
            print(f"{label + ', ' + place:28}{report['hash'][key]}")
    found = faults(nvme, memory)
    print("DIFFERENT" if found else "identical")
    for fault in found:
        print("  " + fault)
    return 1 if found else 0


def main(words):
    if len(words) == 3 and words[0] == "--write-settings":
        write_settings(words[1], words[2])
        return 0
    if len(words) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    return compare(read_report(words[0]), read_report(words[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
