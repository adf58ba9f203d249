#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file system of one file, `disk`, that records every write and every flush of it.

  recorded_disk.py MOUNT IMAGE RECORD

A loop device over MOUNT/disk is a drive whose requests are known in their order. power_loss.py
makes from RECORD what such a drive may hold if its power fails. Needs fusepy and libfuse 2.
"""
import errno
import os
import stat
import struct
import sys

HEADER = struct.Struct("<BQI")  # kind, offset, bytes; then the bytes
WRITE, FLUSH = 1, 2


def read_record(path):
    """Of each request: kind, offset, bytes, and the size of the record before it."""
    data = memoryview(path.read_bytes())
    at = 0
    while at < len(data):
        kind, offset, size = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        yield kind, offset, data[start:start + size], at
        at = start + size


def serve(mount, image, record):
    import fuse  # here: whoever only reads a record needs none

    fd = os.open(image, os.O_RDWR)
    log = open(record, "wb", buffering=0)

    class Disk(fuse.Operations):
        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path != "/disk":
                raise fuse.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": os.fstat(fd).st_size}

        def readdir(self, path, fh):
            return [".", "..", "disk"]

        def open(self, path, flags):
            return fd

        def read(self, path, size, offset, fh):
            return os.pread(fd, size, offset)

        def write(self, path, data, offset, fh):
            done = os.pwrite(fd, data, offset)
            log.write(HEADER.pack(WRITE, offset, done) + data[:done])
            return done

        def fsync(self, path, datasync, fh):
            log.write(HEADER.pack(FLUSH, 0, 0))
            return 0

        def flush(self, path, fh):
            return 0

    # One thread: the record's order is the order in which requests were answered.
    fuse.FUSE(Disk(), mount, foreground=True, nothreads=True, big_writes=True, max_write=131072)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    serve(*sys.argv[1:])
