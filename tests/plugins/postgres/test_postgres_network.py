"""The way to a PostgreSQL server: encrypted, with certificates that are checked, and by way of a real pgbouncer."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import trustme
from postgres_server import NOBODY, PostgresServer
from postgres_tls import Front

from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.errors import Conflict, StorageError
from perstack.ports.storage import Storage
from perstack.testing.storage_fixture import JOB, RUN, SECONDS, payload, wait_for
from perstack_postgres.plugin import perstack_storages

PGBOUNCER = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))


def open_storage(address: str) -> Storage:
    return perstack_storages()[0].open(address.partition(":")[2], Path.cwd())


async def a_life(storage: Storage, other: Storage) -> None:
    """A Job from beginning to end; another storage watches it, and is refused its lease."""
    await storage.create_job(JOB)
    lines, head = seal(EMPTY_LOG, [payload("a")])
    more, _ = seal(head, [payload("b"), payload("c")])
    async with storage.lease(JOB, "me"):
        await storage.append(RUN, 0, lines)
        assert await other.read(RUN) == lines
        with pytest.raises(Conflict, match="me"):
            async with other.lease(JOB, "the other"):
                pass
        async with other.watch(JOB) as watch:  # type: ignore[attr-defined]
            await storage.append(RUN, 1, more)
            await watch.wait(SECONDS)
        await storage.put_summary(JOB, b"{}")
    async with other.lease(JOB, "the other"):
        assert await other.read(RUN) == [*lines, *more]
    await other.delete_job(JOB)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files of two certificate authorities; the first has signed the certificate beside it, for `localhost`."""
    folder = tmp_path_factory.mktemp("authorities")
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(folder / "ours.pem"))
    others.cert_pem.write_to_path(str(folder / "others.pem"))
    issued = ours.issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(folder / "server.key"))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(folder / "server.pem"), append=True)
    return folder / "ours.pem", folder / "others.pem"


@pytest.fixture(scope="module")
def encrypting(postgres: PostgresServer, authorities: tuple[Path, Path]) -> Iterator[int]:
    """The port of a server that speaks TLS: that of PyPI does not, so it is spoken before it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = authorities[0].parent
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    with Front(postgres.folder, context) as front:
        yield front.port


def encrypted(port: int, authority: Path, host: str = "localhost") -> str:
    query = f"sslmode=verify-full&sslrootcert={quote(str(authority), safe='')}&schema=t_tls"
    return f"postgresql://postgres@{host}:{port}/postgres?{query}"


def test_a_connection_is_encrypted_and_the_servers_certificate_is_checked(
    encrypting: int, authorities: tuple[Path, Path]
) -> None:
    async def work() -> None:
        address = encrypted(encrypting, authorities[0])
        storage, other = open_storage(address), open_storage(address)
        try:
            await a_life(storage, other)
        finally:
            await storage.close()
            await other.close()

    wait_for(work())


@pytest.mark.parametrize(
    ("host", "authority", "words"),
    [
        ("localhost", "others.pem", "certificate verify failed"),
        ("127.0.0.1", "ours.pem", "does not match host name"),
        ("localhost", "none.pem", "none.pem"),
    ],
    ids=["another authority", "another host", "no file"],
)
def test_a_server_that_cannot_prove_who_it_is_is_one_line_with_the_remedy(
    encrypting: int, authorities: tuple[Path, Path], host: str, authority: str, words: str
) -> None:
    storage = open_storage(encrypted(encrypting, authorities[0].parent / authority, host))
    began = time.monotonic()
    with pytest.raises(StorageError) as raised:
        wait_for(storage.has_job(JOB))
    wait_for(storage.close())
    assert time.monotonic() - began < 5, "nobody waits for what does not get better"
    text = str(raised.value)
    assert words in text
    assert text.endswith("see `sslmode` and `sslrootcert` in docs/storages.md"), text
    assert "\n" not in text


@contextmanager
def pgbouncer(server: PostgresServer, mode: str) -> Iterator[str]:
    """The folder of its socket, on port 5432."""
    assert PGBOUNCER is not None
    folder = Path(tempfile.mkdtemp(prefix="pb-", dir="/tmp"))
    (folder / "users").write_text('"postgres" ""\n')
    (folder / "ini").write_text(
        f"[databases]\npostgres = host={server.folder} dbname=postgres\n"
        f"[pgbouncer]\nlisten_addr =\nlisten_port = 5432\nunix_socket_dir = {folder}\nlogfile = {folder}/log\n"
        f"pool_mode = {mode}\nauth_type = trust\nauth_file = {folder}/users\nmax_client_conn = 100\n"
    )
    user: dict[str, object] = {}
    if os.getuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([PGBOUNCER, str(folder / "ini")], **quiet, **user)  # type: ignore[call-overload]
    try:
        until = time.monotonic() + SECONDS
        while True:
            with suppress(psycopg.OperationalError):
                psycopg.connect(f"host={folder} dbname=postgres user=postgres").close()
                break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.02)  # a poll of another process, bounded above
        yield str(folder)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
def test_a_real_pgbouncer_in_session_mode_works(postgres: PostgresServer) -> None:
    schema = postgres.address().rpartition("=")[2]

    async def work(folder: str) -> None:
        address = f"postgresql://postgres@/postgres?host={folder}&schema={schema}"
        storage, other = open_storage(address), open_storage(address)
        try:
            await a_life(storage, other)
        finally:
            await storage.close()
            await other.close()

    with pgbouncer(postgres, "session") as folder:
        wait_for(work(folder))


@pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed")
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_real_pgbouncer_that_keeps_no_sessions_is_named_with_the_remedy(postgres: PostgresServer, mode: str) -> None:
    schema = postgres.address().rpartition("=")[2]
    with pgbouncer(postgres, mode) as folder:
        storage = open_storage(f"postgresql://postgres@/postgres?host={folder}&schema={schema}")
        with pytest.raises(StorageError, match="pool_mode = session") as raised:
            wait_for(storage.create_job(JOB))
        asyncio.run(storage.close())
    assert "\n" not in str(raised.value)
    assert postgres.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema) == []
