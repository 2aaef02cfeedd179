"""Verify AWS signatures as AWS does, without botocore.

Source: AWS IAM user guide, «Create a signed AWS API request», steps 1 to 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import HMAC
from urllib.parse import quote

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<id>[^/]+)/(?P<scope>\d{8}/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request), "
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)


def signer_of(method: str, path: str, headers: Mapping[str, str], body: bytes, secret: str) -> tuple[str, str, str]:
    """Return key id, region and service of a signature. Fail if it was not made with `secret`.

    `path` is as it was sent, without a query; `headers` have lower-case names.
    """
    match = _AUTHORIZATION.fullmatch(headers["authorization"])
    assert match, "no signature"
    names = match["names"].split(";")
    assert {"host", "x-amz-date"} <= set(names)
    assert names == sorted(names)
    assert {name for name in headers if name.startswith("x-amz-")} <= set(names), "all of AWS's own are signed"
    lines = [f"{name}:{' '.join(headers[name].split())}" for name in names]
    canonical = "\n".join([method, quote(path, safe="/~"), "", *lines, "", match["names"], sha256(body).hexdigest()])
    digest = sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], match["scope"], digest])
    key = f"AWS4{secret}".encode()
    for part in match["scope"].split("/"):
        key = HMAC(key, part.encode(), sha256).digest()
    assert HMAC(key, to_sign.encode(), sha256).hexdigest() == match["signature"]
    return match["id"], match["region"], match["service"]
