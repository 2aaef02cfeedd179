"""Check a definition file against the installed plugins. Nothing is opened, and no program is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import which

from perstack.config.resolved_settings import chain_of, resolve_provider, resolve_settings
from perstack.core.base.text import nearest, suggestion
from perstack.core.definitions.expert_changes import CREATE_EXPERT
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath, spell
from perstack.core.definitions.models import NAMED, Models, split_name
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import runtime_of
from perstack.core.definitions.settings import NO_OVERRIDES, ProviderSetting
from perstack.core.definitions.skills import (
    ASK_USER,
    BASE_GROUPS,
    CHANGING_TOOLS,
    OWN_FUNCTIONS,
    AgentSkill,
    AnySkill,
    InteractiveSkill,
    McpStdioSkill,
    PluginSkill,
    Skill,
    is_base_skill,
    is_picked,
)
from perstack.core.secrets.masking import masked_words
from perstack.diagnostics.rule_checks import warn_of_rules
from perstack.engine.plugins.job_skills import with_file_in
from perstack.engine.plugins.provider_tools import find_problems, find_tool, offer_tools, unused_options
from perstack.engine.plugins.registry import Plugins
from perstack.errors import DefinitionError, PerstackError, SkillError, UsageError
from perstack.ports.provider import ProviderConfig, ProviderFactory, ProviderTool
from perstack.support.variables import fill_address, find_by_address, variables_in
from perstack.toml_reader.definition_with_includes import DefinitionFile
from perstack.toml_reader.skills import REMEDY
from perstack.toml_reader.source import Reporter
from perstack.trust.agreements import Agreement
from perstack.trust.items import items_of_provider, items_of_skill


async def check_with_plugins(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report what the installed plugins lack or reject in the valid parts of the file. Keys are not checked.

    Without its user's agreement, no folder outside its own is opened, and no provider but a vendor's endpoint.
    """
    agreement = Agreement(Project(path=str(definition.path.absolute())), is_vendor=plugins.is_vendor)
    _check_storage(definition, plugins, env)
    for runtime, key_path, report in _runtimes(definition):
        try:
            plugins.runtime(runtime_of(runtime))
        except UsageError as error:
            report.error(key_path, str(error))
    for setting, key_path, report in _providers(definition):
        is_vendor = plugins.is_vendor(setting.provider_name)  # None: a missing or unknown name
        if is_vendor or (setting.provider_name and not agreement.missing(items_of_provider(setting, agreement.own))):
            await _check_provider(setting, key_path, report, plugins, env)
        elif setting.provider_name and is_vendor is None:
            _find_provider(setting, key_path, report, plugins)
    for skill, key_path, report in _skills(definition):
        if isinstance(skill, AgentSkill) and agreement.missing(items_of_skill(skill, spell(key_path), agreement.own)):
            report.warn(key_path, f"{skill.path} is not checked: it is in another folder, which nobody has agreed to")
            continue
        _check_skill(skill, key_path, report, plugins)
        if isinstance(skill, McpStdioSkill) and not is_base_skill(skill):
            _warn_of_absent(skill, key_path, report, env)
    _check_models(definition, plugins, env)
    for key in definition.drafts:
        await _check_provider_tools(definition, key, plugins, env)
    warn_of_rules(definition, plugins.skills, plugins.providers.values())


def _check_storage(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    if "storage" not in definition.project.model_fields_set or definition.report is None:
        return
    address = definition.project.storage
    if masked_words(address) != address:
        definition.report.warn(("storage",), f"holds what looks like a secret: {REMEDY}")
    if not all(env.get(name) for name in variables_in([address])):
        return
    try:
        find_by_address(address, plugins.storage_at, fill_address(address, env))
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


def _find_provider(
    setting: ProviderSetting, key_path: KeyPath, report: Reporter, plugins: Plugins
) -> ProviderFactory | None:
    """Return the factory of a provider, or report that there is none of that name."""
    try:
        return plugins.provider(setting.provider_name)
    except UsageError as error:
        report.error((*key_path, "providerName"), str(error))
        return None


async def _check_provider(
    setting: ProviderSetting, key_path: KeyPath, report: Reporter, plugins: Plugins, env: Mapping[str, str]
) -> None:
    factory = _find_provider(setting, key_path, report, plugins)
    if factory is None:
        return
    try:
        provider = factory.create(ProviderConfig(setting.setting, env))
    except DefinitionError as error:
        for problem in error.problems:
            # providers report keys as in the file's top-level table
            report.take(problem, (*key_path, *(problem.key or "").split(".")[1:]))
    except PerstackError:
        return  # this machine lacks something, but the file may be right
    else:
        await provider.close()


async def _check_provider_tools(definition: DefinitionFile, key: str, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report tools that the provider of an Expert's first model lacks; warn of tools that are not offered."""
    draft, project = definition.drafts[key], definition.project
    expert, report = draft.expert, draft.report
    if not expert.provider_tools and expert.provider_tool_options is None:
        return
    setting = resolve_provider(project, expert, NO_OVERRIDES) or _default_setting(plugins, env)
    if setting is None or setting.provider_name not in plugins.providers:
        return  # which provider is used depends on the machine, or was reported already
    tools = await _tools_of(plugins.providers[setting.provider_name], setting, env)
    wrong_indexes: set[str | int] = set()
    for key_path, problem in find_problems(expert, setting.provider_name, tools):
        report.error((*draft.at, *key_path), problem)
        wrong_indexes.add(key_path[1])
    for name in unused_options(expert, tools):
        report.warn((*draft.at, "providerToolOptions", name), f"has no effect: `providerTools` has no `{name}`")
    withheld_by_first = offer_tools(expert, setting.provider_name, tools, chain_of(project, expert)).withheld_reasons
    fallbacks = [name for name in _fallback_providers(project, expert, plugins) if name != setting.provider_name]
    tools_by_name = {name: plugins.providers[name].tools for name in fallbacks}
    withheld_by_fallbacks = [
        offer_tools(expert, name, tools, ()).withheld_reasons for name, tools in tools_by_name.items()
    ]
    for index, name in enumerate(expert.provider_tools):
        tool = find_tool(name, tools)
        for reasons in (
            () if tool is None or tool.name in wrong_indexes else (withheld_by_first, *withheld_by_fallbacks)
        ):
            if name in reasons:
                report.warn((*draft.at, "providerTools", index), reasons[name])


def _default_setting(plugins: Plugins, env: Mapping[str, str]) -> ProviderSetting | None:
    factory = plugins.default_provider(env)
    return None if factory is None else ProviderSetting(provider_name=factory.name)


def _fallback_providers(project: Project, expert: Expert, plugins: Plugins) -> Iterable[str]:
    try:
        candidates = resolve_settings(project, expert).models
    except UsageError:
        return ()  # an unknown name of [models], which was reported already
    models = (model.name for candidate in candidates[:1] for model in candidate.models if model.may_name_provider)
    return dict.fromkeys(name for model in models if (name := split_name(model, plugins.providers)[0]) is not None)


async def _tools_of(
    factory: ProviderFactory, setting: ProviderSetting, env: Mapping[str, str]
) -> Sequence[ProviderTool]:
    try:
        provider = factory.create(ProviderConfig(setting.setting, env))
    except PerstackError:
        return factory.tools  # without a key the endpoint is assumed to be the vendor's own
    try:
        return provider.tools if provider.player is None else factory.tools
    finally:
        await provider.close()


def _check_models(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report models of another vendor, and warn of models that resemble a published one of their provider.

    A model that nobody has published may be a new one.
    """
    project = definition.project
    settings = list[tuple[ProviderSetting | None, Models | None, KeyPath, Reporter]]()
    if definition.report is not None:
        settings.append((project.provider, project.model, (), definition.report))
    for draft in definition.drafts.values():
        settings.append((draft.expert.provider or project.provider, draft.expert.model, draft.at, draft.report))
    for setting, models, key_path, report in settings:
        for model in (models,) if isinstance(models, str) else models or ():
            name = None if setting is None else setting.provider_name
            published_models = [] if model.startswith(NAMED) else _published_models(plugins, name, env)
            if not published_models or model in published_models:
                continue
            similar = nearest(model, published_models, 0.85)
            other_vendors = () if setting is None else _other_vendors(model, setting, plugins, env)
            if other_vendors:
                remedy = f'name the provider as well, model = "{other_vendors[0]}/{model}", or a model of {name}'
                report.error(
                    (*key_path, "model"),
                    f"`{model}` is a model of {' and '.join(other_vendors)}, not of {name}: {remedy}",
                )
            elif similar is not None:
                report.warn((*key_path, "model"), f"`{model}` is not a known model; did you mean `{similar}`?")


def _other_vendors(model: str, setting: ProviderSetting, plugins: Plugins, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the vendors that publish this model; none if the setting may lead to a proxy, which may have any model."""
    name = setting.provider_name
    variables = (variable for variable, value in env.items() if value and variable.startswith(f"{name.upper()}_"))
    if setting.setting or any("URL" in variable or "ENDPOINT" in variable for variable in variables):
        return ()
    vendors = (factory for factory in plugins.providers.values() if factory.is_vendor and factory.prices is not None)
    return tuple(
        factory.name
        for factory in vendors
        if factory.prices and model in (offered.name for offered in factory.prices.models())
    )


def _published_models(plugins: Plugins, provider: str | None, env: Mapping[str, str]) -> list[str]:
    """Return the published models of a provider; without a name, of the default one, or of all if none is set up."""
    default = plugins.default_provider(env)
    provider_name = provider or (None if default is None else default.name)
    prices = (factory.prices for factory in plugins.providers.values() if provider_name in (None, factory.name))
    return [model.name for source in prices if source is not None for model in source.models()]


def _skills(definition: DefinitionFile) -> Iterator[tuple[AnySkill, KeyPath, Reporter]]:
    """Yield each skill, with the path of its file made absolute."""
    folder = definition.path.absolute().parent
    for draft in definition.drafts.values():
        for skill in draft.expert.skills:
            located_skill = with_file_in(skill, folder) if isinstance(skill, PluginSkill) else skill
            yield located_skill, (*draft.at, "skills", skill.name), draft.report


def _check_skill(skill: AnySkill, key_path: KeyPath, report: Reporter, plugins: Plugins) -> None:
    if isinstance(skill, AgentSkill):
        _check_folder(skill, key_path, report)
        return
    if isinstance(skill, PluginSkill) and not (skill.plugin or skill.file):
        return  # a missing plugin name has been reported already
    factory = next((factory for factory in plugins.skills if factory.handles(skill)), None)
    if factory is None and isinstance(skill, PluginSkill):
        names = [
            plugin.name for plugin in plugins.skills if plugin.handles(skill.model_copy(update={"plugin": plugin.name}))
        ]
        available = ", ".join(sorted(names)) or "none"
        hint = suggestion(skill.plugin, names)
        report.error(
            (*key_path, "plugin"),
            f"no plugin `{skill.plugin}` is installed; available: {available}{hint}; {OWN_FUNCTIONS}",
        )
    elif isinstance(skill, InteractiveSkill):
        _check_patterns(skill, key_path, report, [tool.name for tool in skill.tools])
    elif factory is not None:
        try:
            factory.check(skill)
        except SkillError as error:
            key = "file" if isinstance(skill, PluginSkill) and skill.file else "settings"
            report.error((*key_path, key), str(error))
        if (specs := factory.known_tools(skill)) is not None:
            _check_patterns(skill, key_path, report, [spec.name for spec in specs])


def _warn_of_absent(skill: McpStdioSkill, key_path: KeyPath, report: Reporter, env: Mapping[str, str]) -> None:
    """Warn of a program and of variables that are not here; they may be where the Expert runs."""
    if which(skill.command, path=env.get("PATH")) is None and "/" not in skill.command:
        report.warn((*key_path, "command"), f"there is no program `{skill.command}` in PATH")
    for index, name in enumerate(skill.required_env):
        if not env.get(name):
            report.warn((*key_path, "requiredEnv", index), f"the variable {name} is not set")


def _check_folder(skill: AgentSkill, key_path: KeyPath, report: Reporter) -> None:
    if not skill.path:
        return  # a missing path was reported already
    # imported late: few projects have Agent Skills
    from perstack.agent_skills.front_matter import NotASkill
    from perstack.agent_skills.skill_folders import read_skill, skill_file_name

    try:
        folder = read_skill(Path(skill.path))
    except NotASkill as error:
        _report_unusable(skill, key_path, f"{skill.path} {error}", report)
        return
    file = f"{skill.path}/{skill_file_name(folder)}"
    for problem in folder.problems:
        _report_unusable(skill, key_path, f"{file}: {problem}", report)
    for repair in folder.skill_head.repairs:
        report.warn(key_path, f"{file}: {repair}")
    if folder.skill_head.ignored:
        names = ", ".join(f"`{name}`" for name in folder.skill_head.ignored)
        report.warn(key_path, f"{file}: has no effect: {names}")
    if folder.skill_head.allowed_tools:
        tools = " ".join(folder.skill_head.allowed_tools)
        report.warn(key_path, f"{file}: `allowed-tools: {tools}` allows nothing here: say it in [permissions]")


def _report_unusable(skill: AgentSkill, key_path: KeyPath, problem: str, report: Reporter) -> None:
    if skill.is_found:
        report.warn(key_path, f"{problem}; skipped, because only a pattern names it")
    else:
        report.error(key_path, problem)


def _check_patterns(skill: Skill, key_path: KeyPath, report: Reporter, names: Sequence[str]) -> None:
    for key, patterns in (("pick", skill.pick), ("omit", skill.omit)):
        for index, pattern in enumerate(patterns):
            is_offered = pattern in (ASK_USER, *CHANGING_TOOLS) and is_base_skill(skill)
            if pattern == CREATE_EXPERT and is_base_skill(skill):
                report.warn((*key_path, key, index), f"`{pattern}` is not offered: only a person makes an Expert")
            elif not is_offered and not any(is_picked(name, [pattern], ()) for name in names):
                hint = suggestion(pattern, [*names, *(BASE_GROUPS if is_base_skill(skill) else ())])
                report.warn((*key_path, key, index), f"`{pattern}` matches no tool of this skill{hint}")
