"""deploy/: a Dockerfile, a compose file and Kubernetes manifests that linters accept, and that agree with the code."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pages import ROOT, page
from sandbox_programs import usable
from terminal import Terminal, reply

from perstack.doors.cli.main import perstack
from perstack.trust.definition_files import load_project

__all__ = ["usable"]  # a fixture

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MANIFESTS: list[tuple[str, dict[str, Any]]] = [
    (file.name, one)
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for one in yaml.safe_load_all(file.read_text())
]
BY_KIND = {one["kind"]: one for _, one in MANIFESTS}
POD = BY_KIND["Deployment"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
SERVICE_KEYS = frozenset((
    "image", "build", "command", "environment", "volumes", "tmpfs", "depends_on", "healthcheck", "deploy", "init",
    "read_only", "cap_drop", "security_opt", "restart", "stop_grace_period", "shm_size",
))  # fmt: skip
"""Of the Compose specification, those that are used here: a misspelt one would be an error only where Docker is."""


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_pinned_small_and_not_roots() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)
    assert len(bases) == 2
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in bases)
    assert re.search(r"^USER 10001:10001$", DOCKERFILE, re.M)
    assert "--require-hashes" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE


@pytest.mark.usefixtures("usable")
def test_one_job_runs_on_a_read_only_root_as_a_user_without_a_home(terminal: Terminal) -> None:
    terminal.project(
        '[experts.writer]\ninstruction = "You write."\n',
        writer=[reply("", ("writeTextFile", {"path": "haiku.md", "text": "Snow."})), reply("It is in haiku.md.")],
    )
    (command,) = re.findall(r"^docker run --rm .*?\n(?=```)", page("docs/operations.md"), re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "), comments=False)
    arguments = words[words.index("perstack:0.1.0") + 1 :]
    variables = dict(word.split("=") for word in words if re.fullmatch(r"[A-Z_]+=\S+", word))
    assert re.search(r'^ENTRYPOINT \["perstack"\]$', DOCKERFILE, re.M)
    assert re.search(r"^WORKDIR /work$", DOCKERFILE, re.M)
    folder = terminal.workspace
    mounts = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/mnt")
    own = ("--bind", str(folder), "/mnt", "--chdir", "/mnt", "--unshare-all", "--uid", "10001", "--gid", "10001")
    env = {
        **{name: value.replace("/work", "/mnt") for name, value in variables.items()},
        "PERSTACK_PLUGINS": "perstack.testing.plugin",
        "PERSTACK_SCRIPT": "/mnt/script.json",
    }
    program = (sys.executable, "-m", "perstack", *arguments, "--provider", "scripted", "--output", "text")
    done = subprocess.run(
        ["bwrap", *mounts, *own, "--", *program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "It is in haiku.md.\n"), done.stderr
    assert (folder / "haiku.md").read_text() == "Snow."
    assert list((folder / "perstack" / "jobs").iterdir())


def test_what_is_copied_is_there_and_is_let_through() -> None:
    let_through = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in let_through, source


def test_the_pinned_packages_are_those_of_the_tests() -> None:
    pinned, tested = (
        dict(re.findall(r"^([\w.-]+)(?:\[.+\])?==(\S+)", (ROOT / "constraints" / name).read_text(), re.M))
        for name in ("workers.txt", "dev.txt")
    )
    assert {"procrastinate", "psycopg", "prometheus-client", "cronsim", "hatchling"} <= pinned.keys()
    assert {name: tested.get(name) for name in pinned} == pinned


@pytest.mark.parametrize(("name", "manifest"), MANIFESTS, ids=[f"{name}-{one['kind']}" for name, one in MANIFESTS])
def test_every_manifest_fits_the_schema_of_kubernetes(name: str, manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_the_pod_may_do_little_and_names_its_secrets() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    secret = BY_KIND["Secret"]
    sources = [one.get("valueFrom", {}) for one in CONTAINER["env"]]
    refs = [one["secretKeyRef"] for one in sources if "secretKeyRef" in one]
    assert {ref["name"] for ref in refs} == {secret["metadata"]["name"]}
    assert {ref["key"] for ref in refs} == secret["stringData"].keys()
    assert CONTAINER["resources"].keys() == {"requests", "limits"}
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"] == BY_KIND["Deployment"]["spec"]["selector"]


def options_of_worker() -> dict[str, Any]:
    command = perstack.get_command(None, "worker")  # type: ignore[arg-type]
    assert command is not None
    return {name: param for param in command.params for name in param.opts}


def drain() -> int:
    return int(re.fullmatch(r"(\d+)s", options_of_worker()["--drain"].default)[1])  # type: ignore[index]


def test_commands_are_those_of_the_worker_and_listen_where_probes_look() -> None:
    in_image = re.findall(r'"([^"]+)"', re.findall(r"^CMD (.+)$", DOCKERFILE, re.M)[-1])
    for argv in (in_image, CONTAINER["args"]):
        assert argv[0] == "worker"
        named = {one.partition("=")[0] for one in argv if one.startswith("--")}
        assert named <= options_of_worker().keys()
        assert any("0.0.0.0:9464" in one for one in argv)
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": 9464}]
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "http"
    }
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/metrics"
    assert f"http://127.0.0.1:{9464}/healthz" in DOCKERFILE


def written_commands() -> list[list[str]]:
    """The command lines of perstack that the files of deploy/ and their page show."""
    files = [one for one in DEPLOY.rglob("*") if one.is_file()]
    lines = [line for one in files for line in re.findall(r"^[ #]*(.*\bperstack .+)$", one.read_text(), re.M)]
    shown = (
        re.search(r"(?:exec worker |^)perstack ((?:worker|submit|workers|answer|jobs)\b.*)$", one) for one in lines
    )
    return [shlex.split(found[1]) for found in shown if found]


def test_every_command_line_of_deploy_is_one_that_perstack_takes() -> None:
    in_image = re.findall(r'"([^"]+)"', re.findall(r"^CMD (.+)$", DOCKERFILE, re.M)[-1])
    shown = written_commands()
    assert shown, "compose.yaml shows how to submit"
    for name, *rest in (in_image, CONTAINER["args"], *shown):
        command = perstack.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None, name
        command.make_context(name, rest)


def test_what_stops_a_worker_gives_it_time_to_drain() -> None:
    graces = (POD["terminationGracePeriodSeconds"], int(COMPOSE["services"]["worker"]["stop_grace_period"][:-1]))
    assert min(graces) >= drain() + 15


def test_compose_uses_keys_that_there_are_and_its_parts_fit() -> None:
    assert COMPOSE.keys() == {"name", "services", "volumes"}
    for service in COMPOSE["services"].values():
        assert service.keys() <= SERVICE_KEYS
        assert re.search(r":[\w.-]*\d", service["image"]), "pinned by a tag"
    worker = COMPOSE["services"]["worker"]
    assert (DEPLOY / worker["build"]["context"] / worker["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert set(worker["depends_on"]) <= COMPOSE["services"].keys()
    wanted = set(re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert wanted == set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text(), re.M))


def test_the_definition_is_one_and_the_same_in_both(tmp_path: Path) -> None:
    for text in ((DEPLOY / "perstack.toml").read_text(), BY_KIND["ConfigMap"]["data"]["perstack.toml"]):
        definition = tmp_path / "perstack.toml"
        definition.write_text(text)
        loaded = load_project(definition)
        assert loaded.warnings == ()
        assert [one.name for one in loaded.project.schedules] == ["nightly"]
    assert tomllib.loads(text) == tomllib.loads((DEPLOY / "perstack.toml").read_text())


def test_the_workers_open_what_their_definition_names_though_nobody_is_asked() -> None:
    of_pod = {one["name"]: one.get("value") for one in CONTAINER["env"]}
    named = next(one.removeprefix("--config=") for one in CONTAINER["args"] if one.startswith("--config="))
    assert of_pod["PERSTACK_TRUST"] == COMPOSE["services"]["worker"]["environment"]["PERSTACK_TRUST"] == named


def test_the_page_names_every_file() -> None:
    text = page("docs/many-machines.md")
    for file in ("Dockerfile", "compose.yaml", "kubernetes/worker.yaml", "kubernetes/secret.example.yaml"):
        assert f"deploy/{file}" in text
