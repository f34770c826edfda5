"""The precision of matrix products and convolutions in training: float32, or bfloat16 on a processor that has it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

from apac.errors import InputError, TrainingError
from apac.training.config import Precision
from apac.validation import shortened

UNSUPPORTED = 3  # status of the trial

# What a step does: convolutions, matrix products, and their gradients. Without instructions for bfloat16 torch emulates
# them: slower than float32 with AVX-512, twenty times as slow without.
TRIAL = """
import platform
import sys
import torch
if sys.platform != "win32":
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
x86 = platform.machine() in ("x86_64", "AMD64")
if x86 and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
    sys.exit(3)
if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
    sys.exit(3)
layers = (torch.nn.Conv2d(3, 16, 3), torch.nn.Conv2d(16, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 36, 64))
with torch.autocast("cpu", torch.bfloat16):
    outputs = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))(torch.ones(32, 3, 10, 10))
outputs.float().sum().backward()
"""


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a network computes its matrix products and convolutions in this precision."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, getattr(torch, precision))


def check_precision(precision: Precision, device: torch.device) -> None:
    """Raise InputError if the device has no instructions for this precision.

    Some processors advertise instructions that the machine does not execute, and the process dies at the first one, so
    another process tries them.
    """
    if precision == "float32":
        return
    if not (has_bfloat16() if device.type == "cpu" else torch.amp.is_autocast_available(device.type)):
        raise InputError(
            f"{'the processor' if device.type == 'cpu' else device.type} of this machine has no working instructions "
            f'for bfloat16; use precision="float32", or train on another machine.'
        )


@cache
def has_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16 and another process survives them."""
    command = [sys.executable, "-P", "-c", TRIAL]
    # In a session of its own, so that Ctrl-C does not end it and is not taken for an answer.
    trial = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True)
    if trial.returncode > 0 and trial.returncode != UNSUPPORTED:  # neither an answer nor killed
        reason = trial.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TrainingError(f'bfloat16 could not be tried: {shortened(reason)}; use precision="float32".')
    return trial.returncode == 0
