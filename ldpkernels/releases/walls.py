# SPDX-License-Identifier: Apache-2.0
"""The first process of new namespaces: it closes a stranger's program in, starts it, and ends with it.

`apart` has `unshare` run this file by its path, with the hidden paths as JSON, and a command. As it is the
first process of its namespace, all that the program forked dies with it, whatever session it moved to.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Sequence

_HERE, _RECURSIVE, _READ_ONLY, _MOUNT_SETATTR = -100, 0x8000, 1, 442  # of linux/fcntl.h and mount.h; Linux 5.12
_RDONLY, _NOSUID, _NODEV, _BIND = 1, 2, 4, 4096  # of sys/mount.h
OPEN = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # empty, and gone afterwards; sockets of services lie in /run


def close(hidden: Sequence[str]) -> None:
    """Make the file system read-only but for new empty folders, and hide what is hidden."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, target: str, flags: int, options: str = "") -> None:
        kind = b"tmpfs" if source == "tmpfs" else None
        call(f"mount {target}", libc.mount(source.encode(), target.encode(), kind, flags, options.encode() or None))

    with open("/proc/self/oom_score_adj", "w") as file:  # where memory ends, it ends with the stranger
        file.write("1000")
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call("read-only /", libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _RECURSIVE, attributes, size))
    for folder in filter(os.path.isdir, hidden):
        mount("tmpfs", folder, _NOSUID | _NODEV | _RDONLY, "size=4k")
    for file_ in filter(os.path.isfile, hidden):
        mount("/dev/null", file_, _BIND)
    for folder in filter(os.path.isdir, OPEN):
        mount("tmpfs", folder, _NOSUID | _NODEV, "mode=1777")


def main(hidden: str, *command: str) -> int:
    """Close, start the command, and wait for it alone; its exit status."""
    close(json.loads(hidden))
    os.chdir("/tmp")
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    while (ended := os.wait())[0] != child:  # what lost its parent is this process's
        pass
    return os.waitstatus_to_exitcode(ended[1]) & 0xFF


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
