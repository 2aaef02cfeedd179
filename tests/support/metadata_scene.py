"""A network namespace with a metadata service: run by `unshare -n -m`, it reports what can be reached from where.

Arguments: a workspace, a file with lines for /etc/hosts. Prints a JSON object with each attempt and its result.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.ports.runtime import LOCAL_RUNTIME, Program, Surroundings
from perstack.system.processes import end_with_block
from perstack_bubblewrap.plugin import BubblewrapFactory

ADDRESS, NAME = "169.254.169.254", "metadata.example"
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"token")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def fetch(url: str) -> str:
    return f"import urllib.request as u; print(u.urlopen('{url}', timeout=5).read().decode())"


async def run_code(folder: Path, policy: SandboxPolicy | None, code: str) -> str:
    """Run the code and return its output, and what was refused."""
    around = Surroundings(folder, "job", ENV)
    runtime = LOCAL_RUNTIME if policy is None else await BubblewrapFactory().prepare(policy, around)
    out, python = folder / "out", Path(sys.base_prefix)
    try:
        with out.open("wb") as file:
            argv = (str(Path(sys.executable).resolve()), "-c", code)
            process = await runtime.start(Program(argv, folder, ENV, -3, file, file, readable=(python,)))
            async with end_with_block(process):
                await process.wait()
        return out.read_text() + "\n".join(runtime.ending(process).refused)
    finally:
        await runtime.close()


async def main(folder: Path, hosts: str) -> None:
    for command in (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"),
        ("mount", "--bind", hosts, "/etc/hosts"),
    ):
        subprocess.run(command, check=True, env=ENV)
    server = ThreadingHTTPServer((ADDRESS, 80), Metadata)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    alone = SandboxPolicy(runtime="bubblewrap")
    allowed = alone.model_copy(update={"network": (NAME,)})
    by_address, by_name = fetch(f"http://{ADDRESS}/"), fetch(f"http://{NAME}/")
    try:
        results = {
            "control by address": await run_code(folder, None, by_address),
            "control by name": await run_code(folder, None, by_name),
            "alone by address": await run_code(folder, alone, by_address),
            "listed by address": await run_code(folder, allowed, by_address),
            "listed by name": await run_code(folder, allowed, by_name),
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
