# SPDX-License-Identifier: Apache-2.0
"""What this machine has: memory, C and C++ libraries, torch, a drive's speed."""
import ctypes
import glob
import importlib.util
import mmap
import os
import re
import subprocess
import sys
import time

MIB = 1 << 20
IN_MEMORY = ("tmpfs", "ramfs")


def facts():
    found = {"cpus": len(os.sched_getaffinity(0)), "kernel": os.uname().release,
             "user": os.getuid(), "glibc": glibc() or None, "python": sys.version.split()[0]}
    with open("/proc/meminfo", encoding="ascii") as file:
        rows = dict(line.split(":", 1) for line in file if ":" in line)
    found["memory_bytes"] = {name: int(rows[name].split()[0]) * 1024
                             for name in ("MemTotal", "MemAvailable") if name in rows}
    return found


def memory_available():
    return facts()["memory_bytes"].get("MemAvailable", 0)


# ---- C and C++ libraries ----

def glibc():
    """Its version as text, or "" where the C library is another."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        return version if name == "glibc" else ""
    except (ValueError, OSError):
        return ""


def number(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def cannot_start(pack):
    """Why the pack's programs cannot start on this machine, in words; "" where they can."""
    needed, have = pack["needs"].get("GLIBC", ""), glibc()
    if not have:
        return (f"this machine's C library is not glibc, and the pack's programs need glibc "
                f"{needed}: none of them starts here. Run it in a container that has it.")
    if number(have) < number(needed):
        return (f"this machine's glibc is {have}, and the pack's programs need {needed}: none of "
                f"them starts here. Run it in a container with glibc {needed} or newer.")
    return older_cxx_library(pack)


def older_cxx_library(pack):
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return ("this machine has no libstdc++.so.6, which the pack's programs need: none of them "
                "starts here. Install it (Debian's libstdc++6).")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = [line.split()[-1] for line in file if "libstdc++.so.6" in line]
    with open(paths[0], "rb") as file:
        has = file.read()
    for name in ("GLIBCXX", "CXXABI"):
        version = pack["needs"].get(name, "")
        if version and f"{name}_{version}".encode() + b"\0" not in has:
            return (f"this machine's libstdc++ has no {name}_{version}, which the pack's programs "
                    "need: none of them starts here. Run it in a container with a newer one.")
    return ""


# ---- torch ----

def find_torch(named, root, pack):
    """The folder that holds a torch that serves, else "" and why not; and its version."""
    if not pack:
        words = [sys.executable, os.path.join(root, "scripts", "find_torch.py")]
        words += [named] if named else ["--gpu"]
        ran = subprocess.run(words, text=True, capture_output=True, check=False)
        why = f"no torch: {ran.stderr.strip()}. Name one with --torch, and train_gpt is built"
        folder = named or ran.stdout.strip()
        return folder, "" if folder else why, torch_version(folder)
    wanted = pack.get("torch") or ""
    if not wanted:
        return "", "the pack was made without torch: make it again where there is one", ""
    fix = f"Have torch {wanted} (pip install torch=={wanted.split('+')[0]}), or name one by --torch"
    folder = named or python_torch()
    version = torch_version(folder)
    if not version:
        where = named or f"{sys.executable}, the python3 in use,"
        return "", f"no torch: {where} has none. {fix}", ""
    if version.split("+")[0] != wanted.split("+")[0]:
        return "", (f"torch {version} of {folder} is not the pack's {wanted}: train_gpt was "
                    f"compiled for that one. {fix}"), version
    if not os.path.isfile(os.path.join(folder, "torch", "lib", "libtorch_cuda.so")):
        return "", f"torch {version} of {folder} has no CUDA part. {fix}", version
    return folder, "", version


def python_torch():
    """Where this Python's torch lies, which is not imported: that takes seconds."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return ""
    return os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))


def torch_version(folder):
    try:
        with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
            found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", file.read())
    except OSError:
        return ""
    return found[1] if found else ""


def library_folders(torch):
    """Of a torch and of the packages of NVIDIA's that lie beside it: NCCL, cuDNN, cuBLAS, ..."""
    if not torch:
        return []
    return ([os.path.join(torch, "torch", "lib")] +
            sorted(glob.glob(os.path.join(torch, "nvidia", "*", "lib"))))


# ---- drives ----

def memory_folder(bytes_wanted):
    """A folder whose files are memory, with room for so many bytes; "" where there is none."""
    with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
        mounts = [line.split()[1] for line in file if line.split()[2] == "tmpfs"]
    room = {mount: free_bytes(mount) for mount in mounts if os.access(mount, os.W_OK | os.X_OK)}
    best = max(room, key=room.get, default="")
    return best if best and room[best] >= bytes_wanted else ""


def file_system(folder):
    """Its kind: ext4, tmpfs, overlay, ..."""
    folder, best, kind = os.path.realpath(folder), "", "unknown"
    with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
        for _, mount, found, *_ in (line.split() for line in file):
            below = folder == mount or folder.startswith(mount.rstrip("/") + "/")
            if below and len(mount) >= len(best):
                best, kind = mount, found
    return kind if best else _file_system_by_stat(folder)


def _file_system_by_stat(folder):
    """In a root folder of its own that is no mount, /proc/mounts does not have it."""
    found = subprocess.run(["stat", "--file-system", "--format=%T", folder],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           check=False).stdout.strip()
    return found or "unknown"


def folder_on_a_drive(folder):
    """`folder`, or where that is in memory another temporary one that is not."""
    for other in (folder, "/var/tmp", os.getcwd()):
        if file_system(other) not in IN_MEMORY and os.access(other, os.W_OK | os.X_OK):
            return other
    return folder


def free_bytes(folder):
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def drive_speed(folder, seconds=3.0, most_bytes=8 << 30):
    """Bytes per second written and read back, in blocks of 4 MiB past the page cache where the
    file system can. Takes `seconds`; the file is gone afterwards."""
    path = os.path.join(folder, "gpu_check-drive")
    block = mmap.mmap(-1, 4 * MIB)  # on a page's edge, as O_DIRECT asks
    block.write(os.urandom(MIB) * 4)
    most_bytes = min(most_bytes, free_bytes(folder) // 2)
    direct = True
    try:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        except OSError:
            file, direct = os.open(path, os.O_RDWR | os.O_CREAT, 0o600), False
        try:
            def write(at):
                return os.pwrite(file, block, at)

            def read(at):
                return os.preadv(file, [block], at)
            wrote, write_s = timed(write, seconds / 2, most_bytes, lambda: os.fdatasync(file))
            # Not a byte of it is read twice: a second time it may come out of a cache.
            again, read_s = timed(read, seconds / 2, wrote, lambda: None)
        finally:
            os.close(file)
    finally:
        block.close()
        if os.path.exists(path):
            os.unlink(path)
    return {"write_bytes_per_second": wrote / write_s, "read_bytes_per_second": again / read_s,
            "direct": direct, "seconds": round(write_s + read_s, 2)}


def timed(move, seconds, most_bytes, settle):
    started, done = time.monotonic(), 0
    while done < max(most_bytes, 4 * MIB) and time.monotonic() - started < seconds:
        moved = move(done)
        if moved != 4 * MIB:
            raise OSError(f"{moved} bytes were moved at {done}, of 4 MiB")
        done += moved
    settle()
    return done, max(time.monotonic() - started, 1e-6)
