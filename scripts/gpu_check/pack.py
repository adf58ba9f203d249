# SPDX-License-Identifier: Apache-2.0
"""--pack: a folder that a machine with a GPU runs as it is, without checkout, compiler or network.

    bin, tests/bin  programs, stripped      tools, scripts  gpu_check itself
    libheadrace.so  for Python              python          its package
    lib             what they load that a bare system may lack (liburing)
    pack.json       what it was made of and what it needs
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from gpu_check import building, machine
from gpu_check.check import Failed

MIB = 1 << 20
# Every glibc system has these, and a second copy of the C++ library beside torch's would be wrong.
OF_THE_SYSTEM = re.compile(
    r"(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so.*")
SCRIPTS = ["tools/gpu_check", "scripts/gpu_check", "python/headrace", "tests/python", "LICENSE"]


def run(command, log=None, **more):
    """Its output, or Failed with the end of it; to a log where it takes long."""
    try:
        ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, check=False, **more)
    except OSError as why:
        raise Failed(f"{command[0]}: {why.strerror}: the pack was not made; it is needed to make "
                     "one") from None
    if log:
        with open(log, "w", encoding="utf-8") as file:
            file.write(ran.stdout)
    if ran.returncode != 0:
        tail = "\n".join(ran.stdout.strip().splitlines()[-15:])
        raise Failed(f"{os.path.basename(command[0])} ended {ran.returncode}, so the pack was not "
                     f"made:\n{tail}")
    return ran.stdout


def make(options, root):
    """The pack in options.pack, whole or not at all."""
    target = os.path.abspath(options.pack)
    if os.path.isdir(target) and os.listdir(target) and (
            not os.path.exists(os.path.join(target, "pack.json"))):
        raise Failed(f"{target} holds other things than a pack: nothing was changed. Name a folder "
                     "that is empty or not there.")
    if not options.no_build:
        build(options, root)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gpu_pack-", dir=os.path.dirname(target)) as scratch:
        part = os.path.join(scratch, "pack")
        programs = lay_out(options.build, root, part)
        use_torch = take_libraries(options.build, programs, part)
        document = {**describe(options.build, root), "needs": needs(part), "use_torch": use_torch}
        document["bytes"] = size_of(part)
        refuse_size(part, document["bytes"], options.pack_mib)
        with open(os.path.join(part, "pack.json"), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
        let_others_read(part)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(part, target)
    return target, document


def build(options, root):
    torch = options.torch or building.linkable_torch(root)
    logs = os.path.join(options.build, "logs")
    os.makedirs(logs, exist_ok=True)
    print(f"builds for compute capability {options.architectures} in {options.build}, "
          f"{'torch of ' + torch if torch else 'without torch and train_gpt: none was found'}",
          file=sys.stderr, flush=True)
    configure = building.configure_command(root, options.build, torch, options.architectures)
    run(configure, os.path.join(logs, "configure.log"))
    run(["cmake", "--build", options.build, *(["-j", options.jobs] if options.jobs else []),
         "--target", *building.targets(options.build, torch)], os.path.join(logs, "build.log"))


def lay_out(build_folder, root, part):
    """Copies, stripped; returns the programs, relative to either folder."""
    programs = ["bin/headrace", "libheadrace.so"]
    programs += ["bin/train_gpt"] if os.path.exists(f"{build_folder}/bin/train_gpt") else []
    programs += ["tests/bin/" + name for name in building.gpu_tests(build_folder, None)]
    for name in programs:
        source, copy = os.path.join(build_folder, name), os.path.join(part, name)
        if not os.path.exists(source):
            raise Failed(f"{source} is not there, so the pack was not made: leave --no-build out, "
                         "and it is built")
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if is_elf(source):
            run(["strip", "-o", copy, source])
        else:
            shutil.copyfile(source, copy)
        os.chmod(copy, 0o755)
    for name in SCRIPTS:
        source, copy = os.path.join(root, name), os.path.join(part, name)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy)
    return programs


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def take_libraries(build_folder, programs, part):
    """What programs load, but for the system's and torch's own. Returns who uses torch."""
    torch = building.cached(build_folder, "HEADRACE_TORCH_ROOT")
    there = set(os.listdir(os.path.join(torch, "torch", "lib"))) if torch else set()
    os.makedirs(os.path.join(part, "lib"), exist_ok=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join(machine.library_folders(torch)))
    waiting = [os.path.join(build_folder, name) for name in programs]
    use_torch = set()
    while waiting:
        user = waiting.pop()
        if not is_elf(user):
            continue
        found = dict(re.findall(r"^\s*(\S+) => (\S+)", run(["ldd", user], env=environment),
                                re.MULTILINE))
        for name in re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", "-W", user])):
            copy = os.path.join(part, "lib", name)
            if name in there:
                use_torch.add(os.path.relpath(user, build_folder))
            if OF_THE_SYSTEM.fullmatch(name) or name in there or os.path.exists(copy):
                continue
            path = os.path.realpath(found.get(name, name))
            if not os.path.isfile(path):
                raise Failed(f"{user} needs {name}, which is not here, so the pack was not made: "
                             "install it")
            run(["strip", "--strip-unneeded", "-o", copy, path])
            waiting.append(path)
    return sorted(use_torch)


def needs(part):
    """The newest symbol versions that programs and libraries ask of the system."""
    newest = {}
    for path in files(part):
        if not is_elf(path):
            continue
        for name, version in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)",
                                        run(["readelf", "-V", "-W", path])):
            newest[name] = max(newest.get(name, "0"), version, key=machine.number)
    return newest


def describe(build_folder, root):
    """What it was made of."""
    try:
        commit = run(["git", "-C", root, "rev-parse", "HEAD"]).strip()
        changed = run(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"]).strip()
    except Failed:
        commit, changed = "unknown", ""  # the sources are not a checkout
    nvcc = building.cached(build_folder, "HEADRACE_NVCC")
    said = run([nvcc, "--version"]) if nvcc else ""
    cuda = re.search(r"release ([\d.]+)", said)
    with open(os.path.join(root, "CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"project\(headrace VERSION (\S+)", file.read())
    return {"schema_version": 1, "program": "gpu_check --pack", "commit": commit,
            "changed_since_commit": bool(changed), "version": version[1],
            "torch": machine.torch_version(building.cached(build_folder, "HEADRACE_TORCH_ROOT")),
            "cuda": cuda[1] if cuda else "",
            "architectures": building.cached(build_folder, "HEADRACE_CUDA_ARCHITECTURES"),
            "made_with_glibc": machine.glibc()}


def files(folder):
    for place, _, names in os.walk(folder):
        for name in names:
            yield os.path.join(place, name)


def size_of(folder):
    return sum(os.path.getsize(path) for path in files(folder))


def refuse_size(part, size, most_mib):
    if size <= most_mib * MIB:
        return
    largest = sorted(files(part), key=os.path.getsize, reverse=True)[:5]
    raise Failed(f"the pack has {size / MIB:.1f} MiB, and --pack-mib is {most_mib:g}: it was not "
                 "made. Name fewer --architectures, or allow more. The largest files:\n" +
                 "\n".join(f"{os.path.getsize(path) / MIB:8.1f} MiB  {os.path.relpath(path, part)}"
                           for path in largest))


def let_others_read(part):
    for place, folders, names in os.walk(part):
        for name in folders:
            os.chmod(os.path.join(place, name), 0o755)
        for name in names:
            path = os.path.join(place, name)
            os.chmod(path, 0o755 if os.access(path, os.X_OK) else 0o644)
    os.chmod(part, 0o755)


def say(target, document):
    print(f"{target}: {document['bytes'] / MIB:.1f} MiB, of {document['commit'][:12]}"
          f"{' and changes' if document['changed_since_commit'] else ''}, torch "
          f"{document['torch'] or 'none'}, CUDA {document['cuda']}, for compute capability "
          f"{document['architectures']}; needs glibc {document['needs'].get('GLIBC', '?')} and "
          f"GLIBCXX_{document['needs'].get('GLIBCXX', '?')}\n\nTo be run there:\n\n"
          f"    {shlex.quote(os.path.basename(target))}/tools/gpu_check --packed --quick "
          "--json quick.json --archive quick.tar.gz\n"
          f"    {shlex.quote(os.path.basename(target))}/tools/gpu_check --packed "
          "--only correctness --json gpu.json --archive gpu.tar.gz --limit 570\n"
          f"    {shlex.quote(os.path.basename(target))}/tools/gpu_check --packed "
          "--only speed --json speed.json --archive speed.tar.gz --limit 570")
