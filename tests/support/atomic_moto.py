"""moto with atomic writes: S3 checks a condition and writes in one step, moto in two.

Without this, two conditional replacements of an object with the same tag could both succeed, and one write would be
lost.
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
    """Return the function with calls serialized by a lock."""

    @wraps(work)
    def turn(*args: Any, **more: Any) -> Any:
        with _TURN:
            return work(*args, **more)

    return turn


for name in ("put_object", "delete_object"):
    setattr(S3Response, name, in_turn(getattr(S3Response, name)))


class Handler(MotoRequestHandler):
    """A request handler without request logging, which takes a tenth of the time."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


if __name__ == "__main__":
    # only S3: moto's own `main` searches the folders of its 170 services at each request
    run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True, request_handler=Handler)
