"""The error types of ark_torch. `Unsupported` is the extension's own type where the extension is built."""

from __future__ import annotations

try:
    from ark_torch._C import DeviceError, Unsupported
except ImportError:

    class Unsupported(RuntimeError):
        """Legal, but ark does not run it natively; the backend falls back to ATen (an error under `strict`)."""

    class DeviceError(RuntimeError):
        """The device failed or a deadline passed."""


__all__ = ["DeviceError", "Unsupported"]
