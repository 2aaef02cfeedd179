"""Read the file of a recording, for the provider `recorded` and for tests."""

from __future__ import annotations

from pathlib import Path

from perstack.errors import UsageError
from perstack.recordings.model import MAX_RECORDING_BYTES, Recording, parse_recording
from perstack.system.files import open_for_reading


def read_recording(path: Path) -> Recording:
    """Read a recording from its file. Raises UsageError: one line with the place and a remedy."""
    try:
        with open_for_reading(path, follow=True) as file, open(file, "rb", closefd=False) as reader:
            data = reader.read(MAX_RECORDING_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the recording {path} cannot be read: {error.strerror or error}") from error
    return parse_recording(data, str(path))
