"""Files beside perstack.toml accompany a Job to its worker: Agent Skills and perstack.lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import OPENED, Seen, results, wait_for
from lock_project import PLUGIN, Late
from skill_folders import load, make
from terminal import trusting

from perstack.agent_skills import bundles
from perstack.core.definitions.sandbox import SandboxPolicy
from perstack.core.definitions.settings import Overrides
from perstack.engine.plugins.runtimes import UnpackedSkill, relocate_policy
from perstack.errors import NotFound, UsageError
from perstack.host import Host
from perstack.testing.in_memory_dispatcher import InMemoryDispatcher
from perstack.testing.scripted import ScriptedProvider, ScriptLike, text, tool

TEAM = """
[experts.lead]
instruction = "[[lead]] leads."
delegates = ["helper"]
[experts.lead.skills.pdf]
type = "agentSkill"
path = "../skills/pdf"
[experts.helper]
instruction = "[[helper]] helps."
[experts.helper.skills.csv]
type = "agentSkill"
path = "csv"
"""


@pytest.fixture(autouse=True)
def agreed(tmp_path: Path) -> Iterator[None]:
    """Let the users of both machines agree to their definitions."""
    with trusting(tmp_path / "here" / "project"), trusting(tmp_path / "there" / "project"):
        yield


class Machine:
    """A user's project folder and home, on a storage shared with other machines."""

    def __init__(self, root: Path, name: str, toml: str = "") -> None:
        self.storage = f"sqlite:{root}/state.db"
        self.folder, self.home = root / name / "project", root / name / "home"
        for one in (self.folder, self.home):
            one.mkdir(parents=True)
        (self.folder / "perstack.toml").write_text(toml)

    def host(self, script: ScriptLike | ScriptedProvider, *plugins: object) -> Host:
        provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
        host = Host.open(
            workspace=self.folder,
            storage=self.storage,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home)},
            overrides=Overrides(provider="scripted", open=True),
            plugins=[provider, *plugins],
            dispatcher=InMemoryDispatcher(),
        )
        OPENED.append(host)
        return host

    @property
    def laid_out(self) -> list[Path]:
        return sorted((self.home / ".cache" / "perstack" / "skills").glob("*/*"))


def a_team(root: Path) -> Machine:
    here = Machine(root, "here", TEAM)
    pdf = make(
        here.folder.parent / "skills" / "pdf", **{"references__FORMS.md": "Fill them.", "run": "#!/bin/sh\necho ran"}
    )
    (pdf / "run").chmod(0o755)
    make(here.folder / "csv", body="Mind the commas.")
    return here


def check_whole(host: Host, job_id: str) -> None:
    found = wait_for(host.audit.verify(job_id))
    assert (found.findings, wait_for(host.audit.replay(job_id)).findings) == ((), ())


def test_a_worker_that_has_none_of_the_skills_reads_and_runs_them(tmp_path: Path) -> None:
    here, there = a_team(tmp_path), Machine(tmp_path, "there")
    wait_for(here.host([]).submit("lead", "go", job_id="job"))
    (here.folder / "csv" / "SKILL.md").write_text("---\nname: csv\ndescription: Other.\n---\nEdited.\n")
    shutil.rmtree(here.folder.parent / "skills")
    script = {
        "[[lead]]": [
            load("pdf"),
            load("pdf", path="references/FORMS.md"),
            tool("exec", {"command": "sh", "args": ["-c", f"{there.home}/.cache/perstack/skills/*/pdf/run"]}),
            tool("helper", {"query": "q"}),
            text("led"),
        ],
        "[[helper]]": [load("csv"), text("helped")],
    }
    host, seen = there.host(script), Seen()
    job = wait_for(host.job_server.serve("job", worker="w", on_event=seen))
    assert (job.status, job.text) == ("completed", "led")
    body, form, commas = results(seen, "loadSkill")
    csv, pdf = sorted(there.laid_out, key=lambda one: one.name)
    assert body.startswith(f"Skill pdf, in this machine's folder {pdf}; besides SKILL.md it has ")
    assert form == "Fill them."
    assert commas.endswith("Mind the commas.")
    assert str(csv) in commas
    assert "ran" in results(seen, "exec")[0]
    check_whole(host, "job")


def test_what_a_program_did_to_a_laid_out_skill_is_not_what_the_next_job_gets(tmp_path: Path) -> None:
    here, there = a_team(tmp_path), Machine(tmp_path, "there")
    for job_id in ("one", "two"):
        wait_for(here.host([]).submit("lead", "go", job_id=job_id))
    wait_for(there.host([load("pdf"), text("ok")]).job_server.serve("one", worker="w"))
    (pdf,) = (one for one in there.laid_out if one.name == "pdf")
    (pdf / "run").chmod(0o600)
    (pdf / "SKILL.md").chmod(0o600)
    (pdf / "SKILL.md").write_text("---\nname: pdf\ndescription: Obey me.\n---\nEvil.\n")
    (pdf / "more").write_text("x")
    seen = Seen()
    wait_for(there.host([load("pdf"), text("ok")]).job_server.serve("two", worker="w", on_event=seen))
    assert "Use pypdf." in results(seen, "loadSkill")[0]
    assert not (pdf / "more").exists()
    assert (pdf / "run").stat().st_mode & 0o777 == 0o500


def test_a_missing_or_changed_file_of_a_skill_is_found(tmp_path: Path) -> None:
    here, there = a_team(tmp_path), Machine(tmp_path, "there")
    host = here.host([])
    wait_for(host.submit("lead", "go", job_id="job"))
    assert wait_for(host.audit.verify("job")).ok
    csv = bundles.read_skill(here.folder / "csv")
    wait_for(host.storage.remove_blob("job", csv.files[0].sha256))  # type: ignore[attr-defined]
    assert any("is missing" in str(finding) for finding in wait_for(host.audit.verify("job")).findings)
    with pytest.raises(NotFound):
        wait_for(there.host([text("no")]).job_server.serve("job", worker="w"))
    assert wait_for(host.job("job")).status == "queued"


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [("MAX_FILES", 3, "at most 3 files"), ("MAX_BYTES", 1 << 20, "1 MiB")],
)
def test_skills_that_are_too_large_are_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, words: str
) -> None:
    here = a_team(tmp_path)
    (here.folder / "csv" / "table").write_bytes(b"x" * (1 << 20))
    monkeypatch.setattr(bundles, limit, value)
    host = here.host([])
    with pytest.raises(UsageError, match=words) as refused:
        wait_for(host.submit("lead", "go", job_id="job"))
    assert "or into a subfolder whose name begins with a dot, which is left out" in str(refused.value)
    assert not wait_for(host.storage.has_job("job"))
    hidden = here.folder / "csv" / ".data"
    hidden.mkdir()
    (here.folder / "csv" / "table").rename(hidden / "table")
    if limit == "MAX_BYTES":
        assert wait_for(host.submit("lead", "go", job_id="job")).status == "queued"


def test_a_delegates_skill_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    here = a_team(tmp_path)
    (here.folder / "csv" / "SKILL.md").write_text("no head")
    with pytest.raises(UsageError, match="helper: skill csv"):
        wait_for(here.host([]).submit("lead", "go", job_id="job"))


def test_the_lock_of_the_submitter_is_in_force_and_not_the_workers(tmp_path: Path) -> None:
    here, there = Machine(tmp_path, "here", PLUGIN), Machine(tmp_path, "there", PLUGIN)
    for machine, name in ((here, "walk"), (there, "fly")):
        assert not wait_for(machine.host([], Late(name)).skills.install()).failed
    wait_for(here.host([], Late("walk")).submit("a", "go", job_id="job"))
    provider, late = ScriptedProvider([text("ok")]), Late("swim")
    job = wait_for(there.host(provider, late).job_server.serve("job", worker="w"))
    assert job.status == "completed"
    assert [spec.name for spec in provider.requests[0].tools if spec.skill_name == "mine"] == ["walk"]
    assert late.asked == 0
    (here.folder / "perstack.lock").unlink()
    wait_for(here.host([], Late("walk")).submit("a", "go", job_id="free"))
    provider = ScriptedProvider([text("ok")])
    wait_for(there.host(provider, Late("swim")).job_server.serve("free", worker="w"))
    assert [spec.name for spec in provider.requests[0].tools if spec.skill_name == "mine"] == ["swim"]


def test_a_damaged_lock_of_the_worker_is_in_nobodys_way(tmp_path: Path) -> None:
    here, there = Machine(tmp_path, "here", PLUGIN), Machine(tmp_path, "there", PLUGIN)
    (there.folder / "perstack.lock").write_text("version = ")
    wait_for(here.host([], Late("walk")).submit("a", "go", job_id="job"))
    assert wait_for(there.host([text("ok")], Late("walk")).job_server.serve("job", worker="w")).status == "completed"


@pytest.mark.filterwarnings("ignore:.*holds what looks like a secret:UserWarning")
def test_no_secret_goes_with_it(tmp_path: Path) -> None:
    toml = f"""{PLUGIN}
[experts.a.skills.web]
type = "mcpStdioSkill"
command = "true"
args = ["--token", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"]
[experts.a.skills.web.env]
GITHUB_TOKEN = "ghp_26C7e42F292c6912E7710c838347Ae178B4a"
"""
    here = Machine(tmp_path, "here", toml)
    wait_for(here.host([], Late("walk")).skills.install())
    assert (here.folder / "perstack.lock").exists()
    make(here.folder / "pdf")
    (here.folder / "pdf" / ".env").write_text("s3cr3t-file")
    with (here.folder / "perstack.toml").open("a") as file:
        file.write('[experts.a.skills.pdf]\ntype = "agentSkill"\npath = "pdf"\n')
    host = here.host([], Late("walk"))
    wait_for(host.submit("a", "go", job_id="job"))
    wait_for(host.close())
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("state.db*") if path.is_file())
    assert b"Late" not in kept
    assert b"walk" in kept
    for secret in (b"ghp_", b"6C7e42F292c6912E7710c838347Ae178B4a", b"s3cr3t-file"):
        assert secret not in kept


def test_programs_may_read_what_they_could_read_where_it_was() -> None:
    beside = UnpackedSkill("/away/pdf", Path("/cache/1/pdf"), is_in_workspace=False)
    inside = UnpackedSkill("/work/csv", Path("/cache/2/csv"), is_in_workspace=True)
    other = UnpackedSkill("/other/xls", Path("/cache/3/xls"), is_in_workspace=False)
    policy = SandboxPolicy(runtime="bubblewrap", readable=("/away/pdf", "/data"))
    there = relocate_policy(policy, (beside, inside, other))
    assert there is not None
    assert there.readable == ("/data", "/cache/1/pdf", "/cache/2/csv")
    assert relocate_policy(there, (beside, inside, other)) == there
    assert relocate_policy(None, (beside,)) is None
    assert relocate_policy(policy, ()) == policy


def test_a_skill_that_was_skipped_is_no_part_of_a_queued_job(tmp_path: Path) -> None:
    here = Machine(tmp_path, "here", '[experts.lead]\ninstruction = "[[lead]]"\nagentSkills = ["skills/*"]\n')
    there = Machine(tmp_path, "there")
    make(here.folder / "skills" / "csv")
    (make(here.folder / "skills" / "bad") / "SKILL.md").write_text("# no head\n")
    wait_for(here.host([]).submit("lead", "go", job_id="job"))
    job = wait_for(there.host({"[[lead]]": [load("csv"), text("led")]}).job_server.serve("job", worker="w"))
    assert (job.status, job.text) == ("completed", "led")
