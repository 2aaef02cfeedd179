"""The opening of a session on a pipe."""

from __future__ import annotations

import json

from editor import Pipe
from terminal import Terminal


def test_an_opening_is_answered_once_and_a_wrong_one_with_the_sdks_error(terminal: Terminal) -> None:
    client = Pipe(terminal)
    client.write("initialize", 3)
    assert client.read()["error"]["code"] == -32602
    client.greet()
    client.call(4, "list_jobs")
    assert client.answer_to(4)["result"]["structuredContent"] == {"jobs": []}
    assert client.close() == (0, "")
    assert [json.loads(line).get("id") for line in client.seen] == [3, 0, 4]
