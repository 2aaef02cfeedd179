"""A command that is forked finds what a new Python finds, and ends as one does."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from pages import run_line
from terminal import Terminal

PROBE = """
import gc, json, locale, os, resource, signal, sys, tempfile, threading, time, warnings
from pathlib import Path

def stream(one):
    return [one.name, one.mode, one.encoding, one.errors, one.line_buffering, one.write_through, one.isatty(),
            type(one.buffer).__name__, one.fileno(), one.newlines]

Path(os.environ["SEEN"]).write_text(json.dumps({
    "streams": [stream(one) for one in (sys.__stdin__, sys.__stdout__, sys.__stderr__)],
    "kept": [type(one).__name__ for one in (sys.stdin, sys.stdout, sys.stderr)],
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "env": sorted(os.environ.items()),
    "main": getattr(sys.modules["__main__"].__spec__, "name", None), "file": sys.modules["__main__"].__file__,
    "locale": [locale.getlocale(), locale.getencoding(), sys.getfilesystemencoding(), sys.flags.utf8_mode],
    "zone": [time.tzname, time.localtime(0)[:6]],
    "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())
                if not (isinstance(signal.getsignal(one), type(lambda: 0)))],
    "masked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "woken": signal.set_wakeup_fd(-1),
    "umask": os.umask(0o22), "group": os.getpgid(0), "leads": os.getsid(0) == os.getpid(), "nice": os.nice(0),
    "threads": [one.name for one in threading.enumerate()],
    "open": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
    "inherited": [os.get_inheritable(number) for number in range(3)],
    "limits": [resource.getrlimit(one) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE)],
    "gc": [gc.isenabled(), gc.get_threshold()], "recursion": sys.getrecursionlimit(), "flags": list(sys.flags),
    "warnings": len(warnings.filters), "temp": tempfile.tempdir, "traced": str(sys.gettrace()),
}))
"""

pytestmark = pytest.mark.linux


@pytest.fixture
def probed(terminal: Terminal) -> Terminal:
    (terminal.workspace / "probe.py").write_text(PROBE)
    terminal.env |= {
        "PERSTACK_PLUGINS": "probe",
        "PYTHONPATH": f"{terminal.workspace}:elsewhere",
        "TZ": "Asia/Tokyo",
        "SEEN": str(terminal.workspace / "seen.json"),
        "PERSTACK_LANGUAGE": "späti \N{SNOWMAN}",
    }
    return terminal


def environment_seen(terminal: Terminal, **options: Any) -> dict[str, Any]:
    """What a command finds."""
    process = warm.perstack("jobs", env=terminal.env, cwd=terminal.workspace, **options)
    with process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return last_environment(terminal)


def last_environment(terminal: Terminal) -> dict[str, Any]:
    """What the last command found."""
    path = Path(terminal.env["SEEN"])
    said = json.loads(path.read_text())
    path.unlink()
    return dict(said)


def typed(terminal: Terminal, line: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A line in a shell, as the pages' are run."""
    env = {name: value for name, value in terminal.env.items() if name != "PATH"}
    return run_line(line, terminal.workspace, env, **options)


@pytest.mark.parametrize("session", [False, True])
def test_a_command_on_pipes_finds_what_a_new_python_finds(probed: Terminal, session: bool) -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    before = os.umask(0o027)
    try:
        forked, new = (environment_seen(probed, new=new, start_new_session=session, **pipes) for new in (False, True))
    finally:
        os.umask(before)
    if session:
        forked.pop("group"), new.pop("group")
    assert forked == new
    assert forked["leads"] == session


def test_a_command_in_a_terminal_finds_what_a_new_python_finds(probed: Terminal) -> None:
    ours, theirs = pty.openpty()
    forked, new = (
        environment_seen(probed, new=new, stdin=theirs, stdout=theirs, stderr=theirs) for new in (False, True)
    )
    os.close(theirs)
    os.close(ours)
    assert forked == new
    assert forked["streams"][1][6], "it is a terminal"


def test_a_command_without_pipes_of_its_own_has_those_of_the_tests(probed: Terminal) -> None:
    forked, new = (environment_seen(probed, new=new, stderr=subprocess.DEVNULL) for new in (False, True))
    assert forked == new


@pytest.mark.parametrize(
    "line", ["perstack jobs", "cd / && umask 27 && LANG=C perstack jobs </dev/null", "env A=b perstack jobs"]
)
def test_a_console_script_finds_what_a_new_one_finds(probed: Terminal, line: str) -> None:
    def seen_by(new: bool) -> dict[str, Any]:
        done = typed(probed, line, new=new)
        assert done.returncode == 0, done.stderr
        seen = last_environment(probed)
        # the script may call the folder of its Python by another name than who runs the tests
        return {**seen, "path": [str(Path(one).resolve()) for one in seen["path"]]}

    forked, new = seen_by(new=False), seen_by(new=True)
    forked.pop("group"), new.pop("group")
    assert forked == new


END = """
import atexit, os, signal, sys, threading

atexit.register(print, "at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread ends"))).start()
print("begun")
{last}
"""
LASTS = {
    "nothing": "",
    "a status": "os.dup(1); sys.stdout.flush(); raise SystemExit(7)",
    "a word": "raise SystemExit('a word')",
    "killed": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGKILL)",
    "ctrl-c": "sys.stdout.flush(); os.kill(os.getpid(), signal.SIGINT)",
    "at once": "os._exit(3)",
}


@pytest.mark.parametrize("last", LASTS.values(), ids=LASTS)
def test_a_command_ends_as_a_new_python_does(terminal: Terminal, last: str) -> None:
    (terminal.workspace / "ending.py").write_text(END.format(last=last))
    terminal.env |= {"PERSTACK_PLUGINS": "ending", "PYTHONPATH": str(terminal.workspace)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": terminal.workspace}

    def result_of(new: bool) -> tuple[int, str, str]:
        with warm.perstack("jobs", env=terminal.env, new=new, **pipes) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    assert result_of(new=False) == result_of(new=True)
    forked, new = (typed(terminal, "perstack jobs", new=new) for new in (False, True))
    assert (forked.returncode, forked.stdout, forked.stderr) == (new.returncode, new.stdout, new.stderr)


def test_a_module_that_hides_one_that_is_imported_already_is_found_as_at_a_start(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (terminal.workspace / "click.py").write_text("raise SystemExit('never this one')")
    assert terminal.run("jobs").code == 0, "no module of the workspace hides one of ours"
    library = tmp_path_factory.mktemp("library")
    (library / "click.py").write_text("raise SystemExit('not this one')")
    terminal.env["PYTHONPATH"] = str(library)
    done = terminal.run("jobs")
    assert (done.code, done.err) == (1, "not this one\n")
    script = typed(terminal, "perstack jobs")
    assert (script.returncode, script.stderr) == (1, "not this one\n")


def test_a_process_takes_signals_and_is_waited_for_in_bounds(terminal: Terminal) -> None:
    (terminal.workspace / "silent.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)")
    terminal.env |= {"PERSTACK_PLUGINS": "silent", "PYTHONPATH": str(terminal.workspace)}
    process = warm.perstack("jobs", env=terminal.env, cwd=terminal.workspace, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        assert Path(f"/proc/{process.pid}").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
        assert process.poll() == process.returncode == -signal.SIGTERM
        process.kill()
    assert not Path(f"/proc/{process.pid}").exists()


def test_a_console_script_takes_signals(terminal: Terminal) -> None:
    (terminal.workspace / "silent.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)")
    terminal.env |= {"PERSTACK_PLUGINS": "silent", "PYTHONPATH": str(terminal.workspace)}
    done = typed(terminal, "perstack jobs >out & until grep -q here out; do :; done; kill $!; wait $!")
    assert done.returncode == 128 + signal.SIGTERM
