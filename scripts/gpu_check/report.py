# SPDX-License-Identifier: Apache-2.0
"""The report: written whole before and after every part, so that no end loses more than one."""
import json
import os
import stat
import sys
import tarfile
import tempfile
import time


class Report:
    def __init__(self, path, archive, logs, more):
        self.path = path
        self.archive = archive
        self.logs = logs
        self.document = {"schema_version": 2, "program": "gpu_check", "complete": False,
                         "ended_by": None, **more, "under_way": None, "counts": {}, "parts": []}
        self.started = time.monotonic()
        self.complained = False

    def begin(self, name):
        self.document["under_way"] = name
        self.save()

    def add(self, part):
        self.document["under_way"] = None
        self.document["parts"].append(part)
        self.save()
        self.save_archive()

    def finish(self, parts):
        """The last time, with parts that did not begin. Whether all of it is where it should be."""
        self.document["parts"] += parts
        self.document["under_way"] = None
        self.document["complete"] = True
        written = self.save(last=True)
        return self.save_archive() and written

    def count(self, status):
        return sum(part["status"] == status for part in self.document["parts"])

    def text(self):
        self.document["counts"] = {name: self.count(name)
                                   for name in ("passed", "failed", "skipped", "ended")}
        self.document["seconds"] = round(time.monotonic() - self.started, 1)
        return json.dumps(self.document, indent=2) + "\n"

    def save(self, last=False):
        """A pipe or a terminal gets the report once, at the end; so does stdout where it fails."""
        whole = replaceable(self.path)
        try:
            if whole:
                replace(self.path, lambda file: file.write(self.text().encode()))
            elif last and self.path != "-":
                with open(self.path, "w", encoding="utf-8") as file:
                    file.write(self.text())
            if self.path != "-":
                return True
        except OSError as why:
            self.complain(f"{self.path}: {why.strerror}: the report goes to stdout")
        return not last or (print_all(self.text()) and self.path == "-")

    def save_archive(self):
        """All logs and the report in one file, whole after every part."""
        if not self.archive:
            return True

        def pack(file):
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=5) as tar:
                tar.add(self.logs, arcname="gpu_check", filter=ours)
                if replaceable(self.path) and os.path.exists(self.path):
                    tar.add(self.path, arcname="gpu_check/report.json", filter=ours)
        try:
            replace(self.archive, pack)
            return True
        except OSError as why:
            self.complain(f"{self.archive}: {why.strerror}: the logs are not in it")
            return False

    def complain(self, text):
        if not self.complained:
            print(f"gpu_check: {text}", file=sys.stderr)
        self.complained = True


def ours(entry):
    """Of nobody in particular: who unpacks it owns it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry if entry.isfile() or entry.isdir() else None


def replaceable(path):
    """Whether a file can take its place: a device or a pipe must stay what it is."""
    if path == "-":
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def replace(path, fill):
    """Atomically: who reads it finds all of the old or all of the new."""
    path = os.path.realpath(path)
    handle, part = tempfile.mkstemp(prefix=os.path.basename(path) + ".", suffix=".part",
                                    dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            os.fchmod(file.fileno(), 0o644)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def print_all(text):
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except OSError as why:
        print(f"gpu_check: stdout: {why.strerror}: the report is lost", file=sys.stderr)
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # or the exit would try again
        return False
