"""What tests of the sandbox share."""

from sandbox_programs import box, usable

__all__ = ["box", "usable"]
