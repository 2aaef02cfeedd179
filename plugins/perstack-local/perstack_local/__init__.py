"""Provider `local`, with the names of its model and library, which can be read without importing the rest."""

from __future__ import annotations

MODEL = "qwen2.5-coder-1.5b-instruct"
INSTALL = "pip install 'perstack[local]'"
