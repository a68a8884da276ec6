"""How the C library hands out memory on a CPU."""

from __future__ import annotations

import ctypes
import sys

# mallopt's names, of glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

# Blocks from here on are the kernel's: what a decoding step allocates is smaller, but for a large vocabulary's logits.
LARGE_BLOCK = 256 * 2**10
# Free memory at the heap's end that stays for the next pass.
_KEPT = 4 * 2**20


def give_back_large_blocks() -> bool:
    """Let memory of freed tensors go back to the system at once, in this process, from now on.

    By default glibc takes ever larger blocks from its heap once one has been freed. There a small tensor that lives on
    (a message under way) pins what was freed before it, and the next pass, of another shape, takes new memory: ranks
    held up to twice the activations that were alive, another amount in each run.

    Returns whether there was something to set: musl and other systems have no such option.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(
        mallopt(name, value) == 1 for name, value in ((_MMAP_THRESHOLD, LARGE_BLOCK), (_TRIM_THRESHOLD, _KEPT))
    )
