"""Definitions made in Python: hosts without a file, and files written of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import wait_for

from perstack import Expert, Host, Overrides, Project
from perstack.core.definitions.experts import Iterate
from perstack.core.definitions.models import Price
from perstack.core.definitions.permissions import Permissions
from perstack.core.definitions.project import Retention, Schedule, Workspace
from perstack.core.definitions.sandbox import Sandbox
from perstack.core.definitions.settings import Budget, CompactionExpert, ProviderSetting
from perstack.core.definitions.skills import (
    InteractiveSkill,
    InteractiveTool,
    McpSseSkill,
    McpStdioSkill,
    McpTool,
    OAuth,
    PluginSkill,
)
from perstack.definition_files import load_project, load_usable
from perstack.errors import DefinitionError, UsageError
from perstack.testing.scripted import ScriptedProvider, text, tool

ROOT = Path(__file__).parents[2]


def loaded_back(project: Project, folder: Path) -> Project:
    (folder / "perstack.toml").write_text(project.to_toml(), newline="")
    return load_project(folder / "perstack.toml").project.model_copy(update={"path": None, "files": ()})


def test_a_host_runs_experts_that_no_file_defines(tmp_path: Path) -> None:
    experts = [
        Expert(name="boss", instruction="[[boss]]", delegates=("hand",)),
        Expert(name="hand", instruction="[[hand]]"),
    ]
    model = ScriptedProvider({"[[boss]]": [tool("hand", {"query": "go"}), text("Done.")], "[[hand]]": [text("ok")]})
    chosen = Overrides(provider="scripted")
    host = Host.of(experts=experts, workspace=tmp_path, env={}, overrides=chosen, plugins=[model])
    job = host.run_sync("boss", "Go.")
    assert (job.text, len(job.runs)) == ("Done.", 2)
    assert wait_for(host.job(job.id)).text == "Done."


def test_every_problem_of_experts_made_in_python_is_named_at_once(tmp_path: Path) -> None:
    experts = [
        Expert(name="a b", instruction="x"),
        Expert(name="c", instruction="", max_steps=-1, delegates=("nobody",)),
        Expert(name="lead", instruction="x", delegates=("@lead/own",)),
        Expert(name="@lead/own", instruction="x"),
        Expert(name="stranger", instruction="x", delegates=("@lead/own",)),
    ]
    with pytest.raises(DefinitionError) as error:
        Host.of(experts=experts, workspace=tmp_path, env={})
    assert [str(problem) for problem in error.value.problems] == [
        'experts: experts."a b": is not a valid Expert key: `name` or `@coordinator/name`,'
        " of letters, digits, `.`, `_` and `-`, a letter or digit first",
        "experts: experts.c.instruction: must not be empty: what the Expert knows and does",
        "experts: experts.c.delegates[0]: there is no Expert `nobody`",
        "experts: experts.c.maxSteps: must be at least 0, not -1",
        "experts: experts.stranger.delegates[0]: `@lead/own` is a delegate of `lead` alone:"
        " delegate to `lead`, or name it without `@lead/`",
    ]
    one = Expert(name="a", instruction="x")
    with pytest.raises(UsageError, match="two Experts are named 'a': rename one"):
        Host.of(experts=[one, Expert(name="a", instruction="y")], workspace=tmp_path, env={})


def test_a_workspace_that_does_not_exist_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("reports", "file"):
        with pytest.raises(UsageError, match=f"workspace: there is no directory {tmp_path / name}; create it, or name"):
            Host.of(experts=[Expert(name="a", instruction="x")], workspace=tmp_path / name, env={})
    (tmp_path / "perstack.toml").write_text('[experts.a]\ninstruction = "x"\n')
    with pytest.raises(UsageError, match="there is no directory"):
        Host.open(workspace=tmp_path / "reports", env={})
    assert not (tmp_path / "reports").exists()


def test_the_name_of_an_expert_is_its_key() -> None:
    expert = Expert(name="writer", instruction="Write.")
    assert (expert.name, expert.key) == ("writer", "writer")
    assert expert == Expert(key="writer", instruction="Write.")
    with pytest.raises(UsageError, match=r"`nmae`; did you mean `name`\?"):
        Expert(nmae="writer", instruction="Write.")


def test_a_project_with_every_kind_of_setting_is_written_and_loads_back_equal(tmp_path: Path) -> None:
    skills = (
        McpStdioSkill(
            name="files",
            command="uvx",
            args=("server",),
            env={"A": "${B}"},
            tools=(McpTool(name="read", paths=("path",), pin=True),),
        ),
        McpSseSkill(name="web", endpoint="https://example.com/mcp", oauth=OAuth(scopes=("read",)), timeout=5),
        InteractiveSkill(
            name="person",
            tools=(
                InteractiveTool(name="ask", input_schema={"type": "object", "properties": {"q": {"type": "string"}}}),
            ),
        ),
        PluginSkill(name="mine", plugin="kit", settings={"sides": 6, "names": ["a", "ü"]}),
    )
    writer = Expert(
        name="@org/writer",
        version="2.0.0",
        instruction='Write.\n\n"""Well.""" \\ \t\r\nAnd "short".\n',
        delegates=("helper",),
        skills=skills,
        model="some-model",
        ask=True,
        budget=Budget(max_cost=0.5),
        permissions=Permissions(allow=("exec(git *)",)),
        output={"type": "object", "properties": {"a": {"type": "integer"}}},
        compaction=CompactionExpert(expert="helper"),
        iterate=Iterate(evaluator=("python", "check.py"), target=1.5, metric=("a", "b")),
        max_steps=0,
    )
    project = Project(
        experts={"@org/writer": writer, "helper": Expert(name="helper", instruction="Help.", agents_md=True)},
        provider=ProviderSetting(provider_name="scripted", setting={"deep": {"x": 1}}),
        workspace=Workspace(path=str(tmp_path / "work"), snapshots=True),
        sandbox=Sandbox(writable=(str(tmp_path),)),
        retention=Retention(older_than="30d", status=("completed",)),
        prices=(Price(name="a/b", input=1.0, output=2.5),),
        models={"fast": ("m1", "m2")},
        schedules=(Schedule(name="nightly", cron="0 2 * * *", expert="helper", query="Go."),),
        max_depth=3,
        compaction="off",
    )
    assert loaded_back(project, tmp_path) == project


def test_the_definition_of_this_repository_loads_back_equal_with_the_experts_of_its_includes(tmp_path: Path) -> None:
    project = load_usable(ROOT / "perstack.toml").project
    bare = project.model_copy(update={"path": None, "files": (), "includes": ()})
    assert len(bare.experts) > 1
    assert loaded_back(project, tmp_path) == bare


def test_a_value_that_toml_has_not_is_an_error() -> None:
    project = Project(storage_setting={"a": None})
    with pytest.raises(UsageError, match="Project cannot be written as TOML, which has no null"):
        project.to_toml()
