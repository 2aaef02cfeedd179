"""moto, whose writes are one after the other: it looks at a condition and writes in two steps, and S3 does both in one.

Of two that replace an object with the same tag at once both would succeed, and what the first wrote would be lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any

from moto.s3.responses import S3Response
from moto.server import MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

_TURN = RLock()


def in_turn(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, one at a time."""

    @wraps(work)
    def turn(*args: Any, **more: Any) -> Any:
        with _TURN:
            return work(*args, **more)

    return turn


for name in ("put_object", "delete_object"):
    setattr(S3Response, name, in_turn(getattr(S3Response, name)))


class Handler(MotoRequestHandler):
    """Keeps silent of requests: a line for each is a tenth of its time."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


if __name__ == "__main__":
    # S3 alone: moto's own `main` looks through the folders of its 170 services at each request
    run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True, request_handler=Handler)
