"""What a definition file asks of plugins, against those that are installed. Nothing is opened, and nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perstack.config.check import suggestion
from perstack.config.key_path import KeyPath
from perstack.config.load import DefinitionFile
from perstack.config.runtimes import runtime_of
from perstack.config.source import Reporter
from perstack.config.written_secrets import REMEDY
from perstack.core.definitions import AgentSkill, AnySkill, InteractiveSkill, PluginSkill, ProviderSetting, Skill
from perstack.core.secret_text import masked_words
from perstack.engine.catalogue import picked
from perstack.engine.plugins import Plugins
from perstack.engine.rule_warnings import warn_of_rules
from perstack.errors import DefinitionError, PerstackError, UsageError
from perstack.ports.provider import ProviderConfig
from perstack.ports.skill import KnownTools
from perstack.ports.variables import filled_address, variables_in

_FINISHING = "attemptCompletion"
"""Both the kind of the tool that ends a Run, and its name."""


async def check_with_plugins(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report what the installed plugins do not have or refuse, in parts of the file that are right as far as they go.

    Whether keys and libraries are there is not asked: that is a matter of this machine.
    """
    _check_storage(definition, plugins, env)
    for runtime, at, report in _runtimes(definition):
        try:
            plugins.runtime(runtime_of(runtime))
        except UsageError as error:
            report.error(at, str(error))
    for setting, at, report in _providers(definition):
        if setting.provider_name:  # without one, that has been reported
            await _check_provider(setting, at, report, plugins, env)
    for skill, at, report in _skills(definition):
        _check_skill(skill, at, report, plugins)
    warn_of_rules(definition, plugins.skills)


def _check_storage(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    if "storage" not in definition.project.model_fields_set or definition.report is None:
        return
    address = definition.project.storage
    if masked_words(address) != address:
        definition.report.warn(("storage",), f"holds what looks like a secret: {REMEDY}")
    if not all(env.get(name) for name in variables_in([address])):
        return
    try:
        plugins.storage_at(filled_address(address, env))
    except UsageError as error:
        definition.report.error(("storage",), str(error))


def _runtimes(definition: DefinitionFile) -> Iterator[tuple[str, KeyPath, Reporter]]:
    runtime = definition.project.runtime
    if runtime is not None and definition.report is not None:
        yield runtime, ("runtime",), definition.report
    for draft in definition.drafts.values():
        if draft.expert.runtime is not None:
            yield draft.expert.runtime, (*draft.at, "runtime"), draft.report


def _providers(definition: DefinitionFile) -> Iterator[tuple[ProviderSetting, KeyPath, Reporter]]:
    setting = definition.project.provider
    if setting is not None and definition.report is not None:
        yield setting, ("provider",), definition.report
    for draft in definition.drafts.values():
        if draft.expert.provider is not None:
            yield draft.expert.provider, (*draft.at, "provider"), draft.report


async def _check_provider(
    setting: ProviderSetting, at: KeyPath, report: Reporter, plugins: Plugins, env: Mapping[str, str]
) -> None:
    try:
        factory = plugins.provider(setting.provider_name)
    except UsageError as error:
        report.error((*at, "providerName"), str(error))
        return
    try:
        provider = factory.create(ProviderConfig(setting.setting, env))
    except DefinitionError as error:
        for problem in error.problems:
            # providers name the key as it stands in the table at the top of a file
            report.take(problem, (*at, *(problem.key or "").split(".")[1:]))
    except PerstackError:
        return  # this machine lacks something; the file is right as far as can be told
    else:
        await provider.close()


def _skills(definition: DefinitionFile) -> Iterator[tuple[AnySkill, KeyPath, Reporter]]:
    for draft in definition.drafts.values():
        for skill in draft.expert.skills:
            yield skill, (*draft.at, "skills", skill.name), draft.report


def _check_skill(skill: AnySkill, at: KeyPath, report: Reporter, plugins: Plugins) -> None:
    if isinstance(skill, AgentSkill):
        _check_folder(skill, at, report)
        return
    if isinstance(skill, PluginSkill) and not skill.plugin:
        return  # that it names none has been reported
    factory = next((one for one in plugins.skills if one.handles(skill)), None)
    if factory is None and isinstance(skill, PluginSkill):
        names = [one.name for one in plugins.skills if one.handles(_of_plugin(skill, one.name))]
        known = ", ".join(sorted(names)) or "none"
        near = suggestion(skill.plugin, names)
        report.error((*at, "plugin"), f"no plugin `{skill.plugin}` is installed; there are: {known}{near}")
    elif isinstance(skill, InteractiveSkill):
        _check_choice(skill, at, report, [tool.name for tool in skill.tools])
    elif isinstance(factory, KnownTools):
        specs = factory.known_tools(skill)
        _check_choice(skill, at, report, [spec.name for spec in specs])
        finishing = [spec.name for spec in specs if spec.kind == _FINISHING]
        if finishing and not any(picked(name, skill.pick, skill.omit) for name in finishing):
            key = "omit" if any(picked(name, skill.pick, ()) for name in finishing) else "pick"
            report.error((*at, key), f"leaves no `{finishing[0]}`, so that the Expert has no way to finish")


def _check_folder(skill: AgentSkill, at: KeyPath, report: Reporter) -> None:
    if not skill.path:
        return  # that has been reported
    # few projects have any
    from perstack.config.skill_folders import read_skill, skill_file_of
    from perstack.core.agent_skills import NotASkill

    try:
        found = read_skill(Path(skill.path))
    except NotASkill as error:
        report.error(at, f"{skill.path} {error}")
        return
    file = f"{skill.path}/{skill_file_of(found)}"
    for problem in found.problems:
        report.error(at, f"{file}: {problem}")
    if found.head.ignored:
        names = ", ".join(f"`{name}`" for name in found.head.ignored)
        report.warn(at, f"{file}: has no effect: {names}")
    if found.head.allowed_tools:
        tools = " ".join(found.head.allowed_tools)
        report.warn(at, f"{file}: `allowed-tools: {tools}` allows nothing here: say it in [permissions]")


def _of_plugin(skill: PluginSkill, name: str) -> PluginSkill:
    """The same declaration, of another plugin."""
    return skill.model_copy(update={"plugin": name})


def _check_choice(skill: Skill, at: KeyPath, report: Reporter, names: Sequence[str]) -> None:
    for key, patterns in (("pick", skill.pick), ("omit", skill.omit)):
        for index, pattern in enumerate(patterns):
            if not any(picked(name, [pattern], ()) for name in names):
                near = suggestion(pattern, names)
                report.warn((*at, key, index), f"`{pattern}` matches no tool of this skill{near}")
