"""What tests of the sandbox share."""

from sandboxed import box, usable

__all__ = ["box", "usable"]
