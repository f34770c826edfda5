"""The device that trains: an accelerator if torch finds one, otherwise the CPU."""

from __future__ import annotations

import torch

from apac.errors import InputError


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Return the device of that name, such as "cpu", "cuda", "cuda:1" or "mps"; by default an accelerator, or the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _unavailable(name, "torch knows no such device") from error
    if device.type == "meta":
        raise _unavailable(name, "it holds no data")
    try:
        torch.zeros(1, device=device)
    # torch raises many kinds of exceptions for a device that the machine does not have or torch was not built for
    except Exception as error:
        raise _unavailable(name, str(error).split("\n")[0].split(". ")[0].rstrip(".")) from error
    return device


def _unavailable(name: str | torch.device, reason: str) -> InputError:
    return InputError(
        f"the device {str(name)!r} is not available: {reason}; choose another one, or omit it for the fastest that "
        f"torch finds."
    )
