"""What the embedded model is called, and how its library is installed; importing this costs nothing."""

from __future__ import annotations

MODEL = "qwen2.5-coder-1.5b-instruct"
INSTALL = "pip install 'perstack[local]'"
