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
        if device.type == "meta":
            raise RuntimeError("it holds no data")
        torch.zeros(1, device=device)
    # torch raises many kinds of exceptions for a device that it does not know or was not built for
    except Exception as error:
        reason = str(error).split("\n")[0].split(". ")[0].rstrip(".")
        raise InputError(
            f"the device {str(name)!r} is not available: {reason}; choose another one, or omit it for the fastest that "
            f"torch finds."
        ) from error
    return device
