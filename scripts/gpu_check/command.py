# SPDX-License-Identifier: Apache-2.0
"""The command line of tools/gpu_check, and its run from the first part to the last."""
import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

from gpu_check import pack, parts
from gpu_check.check import Check, Ended, Failed, Skipped, read_json
from gpu_check.report import Report


def arguments(about, root):
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--json", metavar="FILE", default="-", help="where the report goes; - is stdout [-]")
    add("--archive", metavar="FILE.tar.gz", help="all logs and the report go there in one file")
    add("--out", metavar="DIR", help="logs and traces are kept there")
    add("--quick", action="store_true", help="a first contact, in about 60 s")
    add("--only", metavar="NAME", action="append",
        help="only this part, or correctness or speed; repeatable")
    add("--limit", metavar="S", type=float, default=460,
        help="seconds for all of it: no part begins that would pass it [460]")
    add("--torch", metavar="DIR", help="folder that holds torch/ [python3's]")
    add("--nvme", metavar="DIR", help="where swap files lie [a temporary folder]")
    add("--memory-backed", action="store_true",
        help="a tmpfs in place of the drive for the model that does not fit")
    add("--require-gpu", action="store_true", help="end 3 where there is none")
    add("--list", action="store_true", help="names the parts and ends")
    build = parser.add_argument_group("in a checkout")
    build.add_argument("--build", metavar="DIR", help="build folder [build/gpu; build/gpu-pack]")
    build.add_argument("--no-build", action="store_true", help="what is built there is taken")
    other = parser.add_argument_group("a machine that cannot build")
    other.add_argument("--pack", metavar="DIR",
                       help="here: builds and makes DIR, which has all that --packed takes")
    other.add_argument("--architectures", metavar="LIST", default="90",
                       help="compute capabilities of the pack, e.g. '80 90' [90]")
    other.add_argument("--jobs", metavar="N", help="compilers at once [as many as cmake likes]")
    other.add_argument("--pack-mib", metavar="N", type=float, default=57,
                       help="a larger pack is refused [57]")
    other.add_argument("--packed", action="store_true",
                       help="there: DIR/tools/gpu_check runs what came with it")
    options = parser.parse_args()
    if options.limit <= 0:
        parser.error("--limit: no part would begin; give seconds above 0")
    if options.pack and options.packed:
        parser.error("--pack makes what --packed runs: nothing was done; leave one of them out")
    refuse_places(parser, options, root)
    return options


def refuse_places(parser, options, root):
    """Programs run in a folder of their own, whoever called from wherever."""
    is_pack = os.path.exists(os.path.join(root, "pack.json"))
    if options.packed and not is_pack:
        parser.error(f"--packed: {root} is not a pack (it has no pack.json): nothing was run. Make "
                     "one with --pack DIR, and run DIR/tools/gpu_check")
    if is_pack and not options.packed:
        parser.error(f"{root} is a pack, from which nothing is built: nothing was run. Add "
                     "--packed")
    built = "gpu-pack" if options.pack else "gpu"
    options.build = root if options.packed else options.build or os.path.join(root, "build", built)
    for name in ("build", "torch", "nvme", "out", "archive"):
        if getattr(options, name):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    if options.json != "-":
        options.json = os.path.abspath(options.json)
    names = [name for part in parts.PARTS for name in (part.name, part.group)]
    for name in options.only or []:
        if name not in names:
            parser.error(f"no part is named '{name}': nothing was run; --list names them")
    try:
        for folder in (options.out, options.nvme):
            if folder:
                os.makedirs(folder, exist_ok=True)
        for file in (options.json, options.archive):
            if file and file != "-":
                with open(file, "a", encoding="utf-8"):
                    pass
    except OSError as why:
        parser.error(f"{why.filename}: {why.strerror}: nothing was run: its report would be lost")


def run_part(check, part):
    """Its row of the report. A signal ends the part, and the row says so."""
    started = time.monotonic()
    row, ended = {"name": part.name}, None
    check.so_far, check.most = {}, part.most
    try:
        if check.left() < part.seconds:
            raise Skipped(f"{max(check.left(), 0):.0f} s of --limit are left, and it may take "
                          f"{part.seconds}")
        row.update(status="passed", result=part.work(check))
    except Skipped as why:
        row.update(status="skipped", reason=str(why))
    except Failed as why:
        row.update(status="failed", reason=str(why))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as why:
        row.update(status="failed", reason=f"{type(why).__name__}: {why}")
    except Ended as why:
        ended = why
        row.update(status="ended", reason=f"{why} came after {time.monotonic() - started:.1f} s")
    row["seconds"] = round(time.monotonic() - started, 1)
    if row["status"] != "passed" and check.so_far:
        row["so_far"] = check.so_far
    note = row.get("reason", "").splitlines()
    print(f"{row['seconds']:7.1f} s  {row['status']:8} {part.name}" +
          (f": {note[0]}" if note else ""), file=sys.stderr, flush=True)
    return row, ended


def run_parts(check, report, wanted):
    """All of them, or up to the signal; the rest are in the report as not begun."""
    ended, begun = None, 0
    try:
        for part in wanted:
            report.begin(part.name)
            begun += 1
            row, ended = run_part(check, part)
            if ended:
                report.document["parts"].append(row)
                break
            report.document.update(gpu=check.gpu or None, missing=check.missing or None)
            report.add(row)
    except Ended as why:  # between two parts
        ended = why
    report.document.update(gpu=check.gpu or None, missing=check.missing or None,
                           ended_by=str(ended) if ended else None)
    return ended, report.finish([
        {"name": part.name, "status": "skipped", "reason": f"{ended} came before it", "seconds": 0}
        for part in wanted[begun:]])


def on_signal(number, _frame):
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, lambda *_: None)  # one is enough; the report is being written
    raise Ended(number)


def check_all(options, root):
    brought = read_json(os.path.join(root, "pack.json")) if options.packed else None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with tempfile.TemporaryDirectory(prefix="gpu_check-") as scratch:
        check = Check(options, root, brought, scratch)
        report = Report(options.json, options.archive, check.out,
                        {"gpu": None, "missing": check.missing, "pack": brought,
                         "memory_backed": options.memory_backed})
        if check.cannot_start:
            print(f"gpu_check: {check.cannot_start}", file=sys.stderr)
        try:
            ended, written = run_parts(check, report, parts.chosen(options, brought))
        finally:
            for folder in check.folders:
                shutil.rmtree(folder, ignore_errors=True)
    more = f", {report.count('ended')} ended by {ended}" if ended else ""
    print(f"{report.count('passed')} passed, {report.count('failed')} failed, "
          f"{report.count('skipped')} skipped{more}", file=sys.stderr)
    if ended:
        return 128 + ended.number
    if options.require_gpu and not check.gpu:
        return 3
    return 1 if report.count("failed") or not written else 0


def main(about, root):
    options = arguments(about, root)
    if options.list:
        print(parts.describe())
        return 0
    if not options.pack:
        return check_all(options, root)
    try:
        pack.say(*pack.make(options, root))
        return 0
    except Failed as why:
        print(f"gpu_check: {why}", file=sys.stderr)
        return 1
