"""What container runtimes are tried with: each reaches its aim outside, which is the control, and not inside."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import wait_for
from sandbox_programs import Box

from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.engine.plugins.registry import load_plugins
from perstack.engine.plugins.runtimes import check_policies
from perstack.errors import SkillError, UsageError
from perstack.ports.runtime import Surroundings
from perstack_bubblewrap.file_view import FileViewBuilder

ROOT = os.geteuid() == 0
AIM = "REACHED"

FILES = {
    "ssh keys": "grep -q SECRET {home}/.ssh/id_ed25519",
    "a file elsewhere": "grep -q SECRET {elsewhere}/file",
    "a write elsewhere": "touch {elsewhere}/mine",
    "a symbolic link out": "ln -sf {elsewhere}/file link && grep -q SECRET link",
    "a hard link out": "ln -f {elsewhere}/file hard && grep -q SECRET hard",
    "the parent of the workspace": "ls {workspace}/../elsewhere/file",
    "our state": "grep -q SECRET perstack/state",
    "our state, moved": "mv perstack moved && grep -q SECRET moved/state",
    "a program of the host": "kill -0 {pid}",
    "the environment of a program of the host": "grep -qs CANARY /proc/{pid}/environ",
    "any environment with a key": "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -q CANARY={canary}",
    "the root of a program of the host": "ls /proc/{pid}/root{elsewhere}/file",
    "the folder of a program of the host": "ls /proc/{pid}/cwd/file",
    "a socket in a folder": "{python} -c \"import socket; socket.socket(socket.AF_UNIX).connect('{elsewhere}/s')\"",
    "an abstract socket": "{python} -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\\\0{abstract}')\"",
    "a socket of the system's services": (
        "{python} -c \"import socket; socket.socket(socket.AF_UNIX).connect('{bus}')\""
    ),
    "the folders of systemd and D-Bus": "ls -d /run/systemd || ls -d /run/dbus || ls -d /run/user || ls {bus}",
    "a service on the loopback": "{python} -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 2)\"",
    "a service by the machine's own address": (
        "{python} -c \"import socket; socket.create_connection(('{address}', {port}), 2)\""
    ),
    "jobs of cron": "ls /etc/cron.d || ls /var/spool/cron",
    "the accounts of the machine": "test $(wc -l < /etc/passwd) -gt 3",
    "the first process of the machine": 'test "$(cat /proc/1/comm)" != bwrap && ! grep -qs bwrap /proc/1/cmdline',
}
ATTACH = "import ctypes; raise SystemExit(ctypes.CDLL(None, use_errno=True).ptrace(16, {pid}, 0, 0))"
FOR_ROOT = {
    "a debugger on a program of the host": f'{{python}} -c "{ATTACH}"',
    "the memory of a program of the host": "{python} -c \"open('/proc/{pid}/mem', 'rb')\"",
    "passwords": "grep -q root /etc/shadow",
    "private keys of the system": "ls /etc/ssl/private",
    "a raw socket": "{python} -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)'",
    "a packet socket": "{python} -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
    "a mount": "unshare -m mount -t tmpfs none /mnt",
    "a user namespace": "unshare -U true",
    "a change of root": "chroot / true",
    "a setting of the kernel": 'v=$(cat /proc/sys/vm/swappiness) && echo "$v" > /proc/sys/vm/swappiness',
    "what is run on a crash": ('v=$(cat /proc/sys/kernel/core_pattern) && echo "$v" > /proc/sys/kernel/core_pattern'),
    "messages of the kernel": "dmesg",
    "a change of owner": "touch owned && chown 1 owned",
    "a change of the system": "touch /usr/perstack-test && rm /usr/perstack-test",
}


@contextmanager
def services(box: Box) -> Iterator[dict[str, object]]:
    """A program of the host with a key in its environment, and sockets of every kind."""
    abstract = f"perstack-{os.getpid()}"
    program = subprocess.Popen(
        ["sleep", "300"], env={"CANARY": f"{os.getpid()}", "PATH": os.environ["PATH"]}, cwd=box.elsewhere
    )
    tcp = socket.create_server(("0.0.0.0", 0))
    run = next((one for one in ("/run", os.environ.get("XDG_RUNTIME_DIR")) if one and os.access(one, os.W_OK)), None)
    bus = Path(run or box.elsewhere) / f"perstack-test-{os.getpid()}"
    named, nameless, systems = (socket.socket(socket.AF_UNIX) for _ in range(3))
    named.bind(str(box.elsewhere / "s"))
    nameless.bind(f"\0{abstract}")
    systems.bind(str(bus))
    for one in (named, nameless, systems):
        one.listen()
    try:
        yield {
            "pid": program.pid,
            "canary": os.getpid(),
            "abstract": abstract,
            "bus": bus,
            "port": tcp.getsockname()[1],
            "address": _own_address(),
        }
    finally:
        program.kill()
        program.wait()
        for one in (tcp, named, nameless, systems):
            one.close()
        bus.unlink()


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("name", [*FILES, *FOR_ROOT])
def test_what_is_reached_outside_is_not_reached_inside(box: Box, name: str) -> None:
    line = {**FILES, **FOR_ROOT}[name]
    with services(box) as given:
        places = {"home": box.home, "elsewhere": box.elsewhere, "workspace": box.workspace}
        python = os.path.realpath(sys.executable)
        ready = f"{line.format(python=python, **places, **given)} 2>&1 && echo {AIM}"
        inside = box.run(ready)
        assert AIM not in inside.output.splitlines(), inside.output
        control = box.run(ready, inside=False)
    if name in FOR_ROOT and not ROOT:
        return
    assert control.output.splitlines()[-1:] == [AIM], control.output


def test_the_workspace_can_be_worked_in(box: Box) -> None:
    ran = box.run("mkdir -p a/b && echo hello > a/b/c && cat a/b/c && rm -r a && touch /tmp/x && python3 -V || true")
    assert ran.output.splitlines()[0] == "hello"
    assert ran.status == 0


def test_files_of_variables_are_hidden_under_each_of_their_names(box: Box) -> None:
    (box.workspace / "sub").mkdir()
    for name in (".env", "sub/.env.local", ".env.example"):
        (box.workspace / name).write_text(f"KEY=secret of {name}\n")
    (box.workspace / "copy").hardlink_to(box.workspace / ".env")
    (box.workspace / "link").symlink_to(".env")
    ran = box.run("cat .env sub/.env.local copy link; cat .env.example; echo x > .env; rm -f .env")
    assert "secret of .env\n" not in ran.output
    assert "secret of sub" not in ran.output
    assert "KEY=secret of .env.example" in ran.output
    assert ran.output.count("# hidden by the sandbox of perstack") == 4
    assert (box.workspace / ".env").read_text() == "KEY=secret of .env\n"
    named = box.with_policy(readable=(str(box.workspace / ".env"),))
    assert "secret of .env\n" in named.run("cat .env").output


def test_a_hidden_file_is_hidden_under_a_name_in_another_place(box: Box) -> None:
    keys, shared = box.home / "keys.pem", box.elsewhere / "shared"
    shared.mkdir()
    keys.write_text("SECRET of the host")
    (shared / ".env").write_text("SECRET of the place")
    (shared / "keys").hardlink_to(keys)
    (box.workspace / "copy").hardlink_to(shared / ".env")
    (box.workspace / "keys").hardlink_to(keys)
    around = replace(box.around, hidden=(*box.around.hidden, keys))
    named = replace(box.with_policy(writable=(str(shared),)), around=around)
    assert "SECRET" not in named.run(f"cat copy keys {shared}/keys {shared}/.env").output
    assert "SECRET" in box.run(f"cat copy keys {shared}/keys", inside=False).output


def test_a_workspace_that_is_a_link_is_kept_under_both_of_its_names(box: Box) -> None:
    link = box.elsewhere / "link"
    link.symlink_to(box.workspace)
    (box.workspace / ".env").write_text("SECRET")
    (box.workspace / ".git" / "hooks").mkdir(parents=True)
    around = Surroundings(link, "job", box.around.env, hidden=(link / "perstack",), protected=(link / "perstack.toml",))
    linked = replace(box, workspace=link, around=around)
    for name in (link, box.workspace):
        ran = linked.run(
            f"cd {name}; pwd; cat .env perstack/state; touch made; echo x > perstack.toml; echo x > .git/hooks/x"
        )
        assert ran.output.startswith(f"{name}\n")
        assert "SECRET" not in ran.output
        assert ran.output.count("Read-only file system") == 2
    assert (box.workspace / "made").exists()
    assert linked.run(f"rm {link}; ln -s / {link}").status != 0


def test_a_link_in_a_writable_place_leads_nowhere(box: Box) -> None:
    shared = box.elsewhere / "shared"
    shared.mkdir()
    (shared / "soft").symlink_to(box.elsewhere / "file")
    (shared / "folder").symlink_to(box.home)
    named = box.with_policy(writable=(str(shared),))
    line = (
        f"cat {shared}/soft {shared}/folder/.ssh/id_ed25519; ln {box.elsewhere}/file {shared}/hard; cat {shared}/hard"
    )
    assert "SECRET" in named.run(line, inside=False).output
    (shared / "hard").unlink()
    assert "SECRET" not in named.run(line).output


def test_one_that_comes_later_is_hidden_from_the_next_program(box: Box) -> None:
    assert box.run("ls").status == 0
    (box.workspace / "new").mkdir()
    (box.workspace / "new" / ".env").write_text("KEY=secret")
    assert "secret" not in box.run("cat new/.env").output


@pytest.mark.parametrize(
    "change",
    [
        "echo x >> perstack.toml",
        "rm -f perstack.toml",
        "mv perstack.toml other",
        "echo x > new && mv new perstack.toml",
        "echo evil > .git/hooks/pre-commit",
        "git config core.fsmonitor evil",
        "mv .git old && mkdir .git",
        "rm -rf .git/hooks",
        "echo ../other > .git/commondir",
        "mkdir -p .git/modules/m && echo evil > .git/modules/m/config",
        "echo /tmp > .git/objects/info/alternates",
        "echo x > .git/config.worktree",
        "touch made && git add made",
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x",
    ],
)
def test_what_the_host_or_git_executes_cannot_be_changed(box: Box, change: str) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=box.workspace, check=True)
    (box.workspace / ".git" / "hooks").mkdir(exist_ok=True)
    before = _contents(box.workspace)
    assert box.run(change).status != 0
    assert _contents(box.workspace) == before
    ran = box.run("git status --short && git diff && git init -q /tmp/other", HOME=str(box.workspace))
    assert "?? perstack.toml" in ran.output
    assert ran.status == 0, ran.output


def _contents(folder: Path) -> dict[str, bytes]:
    guarded = [folder / "perstack.toml", *(path for path in (folder / ".git").rglob("*") if path.is_file())]
    return {str(path): path.read_bytes() for path in guarded}


def test_what_is_readable_cannot_be_led_elsewhere_by_a_program(box: Box) -> None:
    models = box.workspace / "vendor" / "models"
    models.mkdir(parents=True)
    (models / "file").write_text("a model")
    named = box.with_policy(readable=(str(models),))
    assert named.run("cat vendor/models/file").output == "a model"
    assert named.run("echo x > vendor/models/file").status != 0
    named.run(f"mv vendor aside; mkdir vendor; ln -s {box.elsewhere} vendor/models")
    assert models.is_symlink(), "the control: it can be done"
    with pytest.raises(SkillError, match="a link that programs may change"):
        FileViewBuilder(named.policy, named.around).build()
    with pytest.raises(UsageError, match="a link that programs may change"):
        named.run(f"cat vendor/models/file {box.elsewhere}/file")


def test_a_writable_place_in_one_that_can_only_be_read_can_be_changed(box: Box) -> None:
    for root in (box.elsewhere / "data", box.workspace / "data"):
        (root / "out").mkdir(parents=True)
        named = box.with_policy(readable=(str(root),), writable=(str(root / "out"),))
        assert named.run(f"touch {root}/mine").status != 0
        assert named.run(f"touch {root}/out/mine").status == 0
        assert (root / "out" / "mine").exists()


def test_the_git_folder_of_another_repository_is_not_changed(box: Box) -> None:
    git = box.elsewhere / "repository" / ".git"
    (git / "hooks").mkdir(parents=True)
    (git / "config").write_text("[core]\n")
    named = box.with_policy(writable=(str(git.parent),))
    for name in ("hooks/pre-commit", "config", "index", "commondir"):
        assert named.run(f"echo evil > {git}/{name}").status != 0
    assert named.run(f"mv {git}/hooks {git}/old").status != 0
    assert named.run(f"touch {git.parent}/made").status == 0


@pytest.mark.parametrize(
    ("key", "place", "reason"),
    [
        ("writable", "{workspace}/perstack", "which only the host may use"),
        ("writable", "{workspace}/perstack/jobs", "which only the host may use"),
        ("readable", "{workspace}/perstack", "which only the host may use"),
        ("readable", "{workspace}/perstack/state", "which only the host may use"),
        ("readable", "{elsewhere}/link/state", "which only the host may use"),
        ("writable", "{workspace}/perstack.toml", "nothing that tools start may change that"),
        ("writable", "{elsewhere}/definition", "a file that the host reads"),
        ("writable", "{elsewhere}/.env", "a file of environment variables"),
        ("writable", "{elsewhere}/.git/hooks", "what git executes"),
        ("writable", "{elsewhere}/.git", "git's own"),
        ("writable", "{elsewhere}/.git/worktrees/one", "git's own"),
        ("readable", "{workspace}/led", "is a link that programs may change"),
        ("readable", "{home}/..", "contains your home folder"),
        ("writable", "/etc/cron.d", "belongs to the system"),
        ("readable", "/proc/1", "belongs to the system"),
    ],
)
@pytest.mark.parametrize("runtime", ["bubblewrap", "local"])
def test_a_place_that_would_give_too_much_is_an_error_that_names_it(
    box: Box, runtime: str, key: str, place: str, reason: str
) -> None:
    (box.elsewhere / "link").symlink_to(box.workspace / "perstack")
    (box.elsewhere / "definition").symlink_to(box.workspace / "perstack.toml")
    (box.workspace / "led").symlink_to(box.elsewhere)
    path = os.path.normpath(place.format(workspace=box.workspace, elsewhere=box.elsewhere, home=box.home))
    policy = SandboxPolicy.model_validate({"runtime": runtime, key: (path,)})
    with pytest.raises(UsageError, match=re.escape(reason)) as refused:
        wait_for(check_policies(load_plugins((), {}), (policy,), lambda: box.around))
    assert f"`{key}` of [sandbox] is {path}" in str(refused.value)


def test_what_holds_the_state_can_be_named_and_the_state_is_not_in_it(box: Box) -> None:
    state = box.elsewhere / "state"
    state.mkdir()
    (state / "job").write_text("SECRET")
    around = replace(box.around, hidden=(state,))
    named = replace(box.with_policy(writable=(str(box.elsewhere),)), around=around)
    assert (
        "SECRET"
        not in named.run(f"cat {state}/job; mv {state} {box.elsewhere}/moved; cat {box.elsewhere}/*/job").output
    )
    assert (state / "job").read_text() == "SECRET"


def test_nothing_of_the_environment_comes_in_but_what_is_given(box: Box) -> None:
    ran = box.run("env; tr '\\0' '\\n' < /proc/1/environ", TOKEN="mine")
    assert "CANARY" not in ran.output
    assert "TOKEN=mine" in ran.output
    assert "HOME=/tmp" in ran.output


def test_a_variable_cannot_become_an_argument_of_the_sandbox_nor_be_one_of_its_own(box: Box) -> None:
    with pytest.raises(ValueError, match="null byte"):
        box.run("ls /host", EVIL="x\0--bind\0/\0/host")
    (box.workspace / "evil.c").write_text("")
    assert (
        "evil"
        not in box.run("cat /proc/1/maps", LD_PRELOAD=str(box.workspace / "evil.so"))
        .output.replace("object 'evil", "")
        .split("cannot be preloaded")[-1]
    )


def test_no_new_privileges_and_no_capabilities(box: Box) -> None:
    status = box.run("cat /proc/self/status").output
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status


def test_text_cannot_be_put_into_a_terminal(box: Box) -> None:
    code = (
        "import fcntl, os, pty, termios\n"
        "_, slave = pty.openpty()\n"
        "try: fcntl.ioctl(slave, termios.TIOCSTI, b'x')\n"
        "except PermissionError: print('refused')\n"
    )
    assert box.python(code).output == "refused\n"


def test_only_the_loopback_is_there(box: Box) -> None:
    lines = box.run("cat /proc/net/route; cat /proc/net/dev").output
    assert [line.split(":")[0].strip() for line in lines.splitlines() if ":" in line] == ["lo"]


def test_nothing_is_left_when_the_host_is_killed(box: Box) -> None:
    mark = f"300.{os.getpid()}"
    script = box.elsewhere / "host.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from perstack.core.definitions.sandbox import SandboxPolicy\n"
        "from perstack.ports.runtime import Program, Surroundings\n"
        "from perstack_bubblewrap.plugin import BubblewrapFactory\n"
        "async def main():\n"
        "    work = Path(sys.argv[1])\n"
        "    around = Surroundings(work, 'job', {**os.environ, 'HOME': '/nonexistent'})\n"
        "    runtime = await BubblewrapFactory().prepare(SandboxPolicy(runtime='bubblewrap'), around)\n"
        "    line = f'setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}'\n"
        "    env = {'PATH': '/usr/bin:/bin'}\n"
        "    program = Program(('sh', '-c', line), work, env, -3, -3, -3)\n"
        "    process = await runtime.start(program)\n"
        "    print('up', flush=True)\n"
        "    await process.wait()\n"
        "asyncio.run(main())\n"
    )
    host = subprocess.Popen([sys.executable, str(script), str(box.workspace), mark], stdout=subprocess.PIPE)
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        assert _becomes_true(lambda: len(_running(mark)) >= 2)
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
        if host.stdout is not None:
            host.stdout.close()
    assert _becomes_true(lambda: not _running(mark))


def _running(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", mark.encode()]:
            found.append(entry.name)
    return found


def _becomes_true(is_so) -> bool:
    """Whether it becomes so within ten seconds."""
    tick, until = threading.Event(), time.monotonic() + 10
    while not is_so():
        if time.monotonic() > until:
            return False
        tick.wait(0.02)
    return True
