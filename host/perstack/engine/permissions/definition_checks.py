"""Check a definition file against the installed plugins. Nothing is opened, and no program is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from shutil import which

from perstack.config.check import suggestion
from perstack.config.load import DefinitionFile
from perstack.config.settings import NO_OVERRIDES, chain_of, resolve_provider, resolve_settings
from perstack.config.skills import REMEDY
from perstack.config.source import Reporter
from perstack.core.base.patterns import Glob
from perstack.core.base.secrets import masked_words
from perstack.core.base.text import nearest
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import KeyPath, key_and_version
from perstack.core.definitions.models import NAMED, Models, split_name
from perstack.core.definitions.permissions import Decision, PermissionRule, Permissions, read_rule
from perstack.core.definitions.project import Project
from perstack.core.definitions.sandbox import runtime_of
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import (
    ASK_USER,
    AgentSkill,
    AnySkill,
    InteractiveSkill,
    McpStdioSkill,
    PathUse,
    PluginSkill,
    Skill,
    ToolSpec,
    is_base_skill,
    is_picked,
    legal_tool_name,
    path_uses,
)
from perstack.core.permissions.calls import is_exempt
from perstack.core.permissions.command_patterns import has_options, read_command
from perstack.dataclass import dataclass
from perstack.engine.permissions.recorded_calls import host_skills, known_tools
from perstack.engine.plugins.provider_tools import find_tool, offer_tools, problems, unused_options
from perstack.engine.plugins.registry import Plugins
from perstack.errors import DefinitionError, PerstackError, SkillError, UsageError
from perstack.ports.provider import ProviderConfig, ProviderFactory, ProviderTool
from perstack.ports.skill import SkillFactory
from perstack.support.variables import fill_address, find_by_address, variables_in

# Permission rules that can never match or never decide are reported: a rule without effect misleads.

_SAME_RULE_IN_ASK = "never decides anything: the same rule is in ask, and of two that are equal the one that asks wins"
_LISTS = ("deny", "ask", "allow")


@dataclass(slots=True)
class _Reach:
    """The delegates and tools that some Experts can call."""

    delegates: set[str] = field(default_factory=set[str])
    skills: dict[str, list[tuple[ToolSpec, ...] | None]] = field(
        default_factory=dict[str, "list[tuple[ToolSpec, ...] | None]"]
    )

    host_skills: set[str] = field(default_factory=set[str])

    def add(self, expert: Expert, known: Mapping[str, tuple[ToolSpec, ...] | None]) -> None:
        self.host_skills |= host_skills(expert)
        self.delegates.update(key_and_version(key)[0] for key in expert.delegates)
        for name, specs in known.items():
            self.skills.setdefault(name, []).append(specs)


def warn_of_rules(
    definition: DefinitionFile, factories: Sequence[SkillFactory], providers: Iterable[ProviderFactory] = ()
) -> None:
    """Report each rule that can never match or never decide, with file and line."""
    all_reach = _Reach()
    reach_by_expert: dict[str, _Reach] = {}
    tools = [tool for provider in providers for tool in provider.tools]
    for key, draft in definition.drafts.items():
        specs_by_skill = known_tools(factories, draft.expert, tools)
        all_reach.add(draft.expert, specs_by_skill)
        reach_by_expert.setdefault(key, _Reach()).add(draft.expert, specs_by_skill)
    project = definition.project.permissions
    if project is not None and definition.report is not None and definition.drafts:
        _warn(project, ("permissions",), definition.report, all_reach, ())
    denied = () if project is None else project.deny
    for key, draft in definition.drafts.items():
        if draft.expert.permissions is not None:
            _warn(draft.expert.permissions, (*draft.at, "permissions"), draft.report, reach_by_expert[key], denied)


def _warn(table: Permissions, at: KeyPath, report: Reporter, reach: _Reach, denied_above: Sequence[str]) -> None:
    for name in _LISTS:
        rules: tuple[str, ...] = getattr(table, name)
        for index, text in enumerate(rules):
            denied = [*denied_above, *(table.deny[:index] if name == "deny" else table.deny)]
            rule = read_rule(text)
            problem = _problem(rule, reach) or _shadow(text, denied)
            if problem is None:
                problem = (
                    _problem_of_allow(rule, reach)
                    if name == "allow"
                    else _problem_of_refusal(rule, reach, table.otherwise)
                )
            if problem is None and name == "allow" and text in table.ask:
                problem = _SAME_RULE_IN_ASK
            if problem is not None:
                report.warn((*at, name, index), f"`{text}` {problem}")


def _problem(rule: PermissionRule, reach: _Reach) -> str | None:
    if rule.is_delegate:
        if any(rule.tool.matches(key) for key in reach.delegates):
            return None
        return f"never matches: no Expert here delegates to it{suggestion(rule.tool.text, reach.delegates)}"
    if rule.skill is not None and not any(map(rule.skill.matches, reach.skills)):
        return f"never matches: there is no such skill{suggestion(rule.skill.text, reach.skills)}"
    return _problem_of_tool(rule, reach)


def _problem_of_tool(rule: PermissionRule, reach: _Reach) -> str | None:
    skills = [each for name, each in reach.skills.items() if rule.skill is None or rule.skill.matches(name)]
    variants = [specs for each in skills for specs in each]
    known_specs = [spec for specs in variants for spec in specs or ()]
    tools = [spec for spec in known_specs if rule.tool.matches(spec.name)]
    if None in variants and not rule.tool.is_literal:
        return None
    if rule.group is not None and any(_has_paths(spec, rule.group) for spec in known_specs):
        return None
    judged = [spec for spec in tools if not is_exempt(spec.kind, spec.subject)]
    is_delegate = rule.skill is None and any(rule.tool.matches(legal_tool_name(key)) for key in reach.delegates)
    if is_delegate or (not tools and None in variants):
        return None
    if not tools:
        names = sorted({spec.name for spec in known_specs})
        return f"never matches: there is no such tool{suggestion(rule.tool.text, names)}"
    if not judged:
        return "never matches: no rule holds for the loop's own tools and for questions to a person"
    return _problem_of_arguments(rule, judged)


def _has_paths(spec: ToolSpec, use: PathUse) -> bool:
    subject = spec.subject
    return subject is not None and any(use in path_uses(subject, name, spec.effect) for name in subject.paths)


def _problem_of_allow(rule: PermissionRule, reach: _Reach) -> str | None:
    """Return why a rule that allows never matches, or covers less than it seems to."""
    if rule.is_delegate:
        return None
    tools = [spec for spec in _specs(reach) if rule.tool.matches(spec.name)]
    if rule.skill is None and rule.group is None and reach.host_skills.isdisjoint(spec.skill_name for spec in tools):
        skill = next((spec.skill_name for spec in tools), "SKILL")
        return (
            f"never matches: a rule without a skill allows tools of the base skill alone; write `{skill}/{rule.text}`"
        )
    runs_program = any(spec.subject is not None and spec.subject.program for spec in tools)
    if rule.bare is None or not runs_program:
        return None
    try:
        pattern = read_command(rule.bare.text)
    except ValueError as error:
        return f"never matches: it {error}"
    glued = pattern.glued_word
    return None if glued is None else f"allows `{glued}` as one word and nothing after it: for arguments write ` *`"


def _problem_of_refusal(rule: PermissionRule, reach: _Reach, otherwise: Decision) -> str | None:
    """Return what a rule that denies or asks leaves open although it seems to name a file."""
    if rule.is_delegate or not rule.has_arguments:
        return None
    tools = [spec for spec in _specs(reach) if rule.tool.matches(spec.name) and spec.skill_name in reach.host_skills]
    runs_program = any(spec.subject is not None and spec.subject.program for spec in tools)
    if runs_program and rule.bare is not None and has_options(rule.bare.text):
        return "never matches: options in braces have a meaning in allow alone"
    written = {name for spec in tools if spec.subject is not None for name in spec.subject.writes}
    if rule.group is not None or not written or not rule.tool.is_literal or otherwise != "allow":
        return None
    path = rule.bare or next((glob for name, glob in rule.named if name in written), None)
    others = "other file tools may still change it; for all write"
    return None if path is None else f"holds for {rule.tool.text} alone: {others} `write({path.text})`"


def _specs(reach: _Reach) -> list[ToolSpec]:
    return [spec for each in reach.skills.values() for specs in each for spec in specs or ()]


def _problem_of_arguments(rule: PermissionRule, tools: Sequence[ToolSpec]) -> str | None:
    argument_names = {name for name, _ in rule.named}
    property_sets = [set(_properties(spec)) for spec in tools]
    if any(argument_names <= names for names in property_sets):
        return None
    missing = sorted(argument_names - set[str]().union(*property_sets)) or sorted(argument_names)
    names = sorted(set[str]().union(*property_sets))
    runs_programs = any(spec.subject is not None and spec.subject.program for spec in tools)
    hint = f"; in a command line write `{missing[0]}\\=`" if runs_programs else suggestion(missing[0], names)
    return f"never matches: the tool has no argument `{missing[0]}`{hint}"


def _properties(spec: ToolSpec) -> Iterator[str]:
    properties = spec.input_schema.get("properties")
    if isinstance(properties, dict):
        yield from properties


def _shadow(text: str, denied: Sequence[str]) -> str | None:
    rule = read_rule(text)
    for other in denied:
        if other == text or _covers(read_rule(other), rule):
            return f"never decides anything: `{other}` in deny holds for all that it names"
    return None


def _covers(wide: PermissionRule, narrow: PermissionRule) -> bool:
    """Return whether the wide rule matches everything that the narrow one does; False where that is hard to prove."""
    if wide.group != narrow.group and not (wide.tool.text == "*" and wide.skill is None and not wide.has_arguments):
        return False
    if wide.is_delegate != narrow.is_delegate and not (wide.tool.text == "*" and wide.skill is None):
        return False
    if wide.skill is not None and (narrow.skill is None or not _is_within(wide.skill.text, narrow.skill.text)):
        return False
    if not _is_within(wide.tool.text, narrow.tool.text):
        return False
    if not wide.has_arguments:
        return True
    if wide.bare is not None and narrow.bare is not None:
        return wide.bare.text in ("*", "**", narrow.bare.text)
    return bool(wide.named) and wide.named == narrow.named


def _is_within(wide: str, narrow: str) -> bool:
    return wide == narrow or Glob(wide).matches(narrow)


async def check_with_plugins(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report what the installed plugins lack or reject in the valid parts of the file. Keys are not checked."""
    _check_storage(definition, plugins, env)
    for runtime, at, report in _runtimes(definition):
        try:
            plugins.runtime(runtime_of(runtime))
        except UsageError as error:
            report.error(at, str(error))
    for setting, at, report in _providers(definition):
        if setting.provider_name:  # a missing name has been reported already
            await _check_provider(setting, at, report, plugins, env)
    for skill, at, report in _skills(definition):
        _check_skill(skill, at, report, plugins)
        if isinstance(skill, McpStdioSkill) and not is_base_skill(skill):
            _warn_of_lacks(skill, at, report, env)
    _warn_of_models(definition, plugins, env)
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
            # providers report keys as in the file's top-level table
            report.take(problem, (*at, *(problem.key or "").split(".")[1:]))
    except PerstackError:
        return  # this machine lacks something; the file may still be right
    else:
        await provider.close()


async def _check_provider_tools(definition: DefinitionFile, key: str, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Report tools that the provider of an Expert's first model lacks; warn of tools that are not offered."""
    draft, project = definition.drafts[key], definition.project
    expert, report = draft.expert, draft.report
    if not expert.provider_tools and expert.provider_tool_options is None:
        return
    setting = resolve_provider(project, expert, NO_OVERRIDES) or _configured(plugins, env)
    if setting is None or setting.provider_name not in plugins.providers:
        return  # which provider is used depends on the machine, or was reported already
    tools = await _tools_of(plugins.providers[setting.provider_name], setting, env)
    wrong_indexes: set[str | int] = set()
    for at, problem in problems(expert, setting.provider_name, tools):
        report.error((*draft.at, *at), problem)
        wrong_indexes.add(at[1])
    for name in unused_options(expert, tools):
        report.warn((*draft.at, "providerToolOptions", name), f"has no effect: `providerTools` has no `{name}`")
    withheld = offer_tools(expert, setting.provider_name, tools, chain_of(project, expert)).withheld
    fallbacks = [name for name in _fallbacks(project, expert, plugins) if name != setting.provider_name]
    tools_by_name = {name: plugins.providers[name].tools for name in fallbacks}
    withheld_by_fallbacks = [offer_tools(expert, name, tools, ()).withheld for name, tools in tools_by_name.items()]
    for index, name in enumerate(expert.provider_tools):
        tool = find_tool(name, tools)
        for reasons in () if tool is None or tool.name in wrong_indexes else (withheld, *withheld_by_fallbacks):
            if name in reasons:
                report.warn((*draft.at, "providerTools", index), reasons[name])


def _configured(plugins: Plugins, env: Mapping[str, str]) -> ProviderSetting | None:
    factories = sorted(plugins.providers.values(), key=lambda factory: factory.priority)
    name = next((factory.name for factory in factories if factory.is_configured(env)), None)
    return None if name is None else ProviderSetting(provider_name=name)


def _fallbacks(project: Project, expert: Expert, plugins: Plugins) -> Iterable[str]:
    try:
        candidates = resolve_settings(project, expert).models
    except UsageError:
        return ()  # an unknown name of [models], which was reported already
    models = (model.name for each in candidates[:1] for model in each.models if model.may_name_provider)
    return dict.fromkeys(name for model in models if (name := split_name(model, plugins.providers)[0]) is not None)


async def _tools_of(
    factory: ProviderFactory, setting: ProviderSetting, env: Mapping[str, str]
) -> Sequence[ProviderTool]:
    try:
        provider = factory.create(ProviderConfig(setting.setting, env))
    except PerstackError:
        return factory.tools  # without a key, the endpoint is taken for the vendor's own
    try:
        return provider.tools if provider.player is None else factory.tools
    finally:
        await provider.close()


def _warn_of_models(definition: DefinitionFile, plugins: Plugins, env: Mapping[str, str]) -> None:
    """Warn of models that resemble a published one of their provider; a newer one may be right."""
    project = definition.project
    project_provider = project.provider.provider_name if project.provider is not None else None
    settings = list[tuple[str | None, Models | None, KeyPath, Reporter]]()
    if definition.report is not None:
        settings.append((project_provider, project.model, (), definition.report))
    for draft in definition.drafts.values():
        setting = draft.expert.provider
        name = project_provider if setting is None else setting.provider_name
        settings.append((name, draft.expert.model, draft.at, draft.report))
    for name, models, at, report in settings:
        for model in (models,) if isinstance(models, str) else models or ():
            published = [] if model.startswith(NAMED) else _published(plugins, name, env)
            similar = None if model in published else nearest(model, published, 0.85)
            if similar is not None:
                report.warn((*at, "model"), f"`{model}` is not a known model; did you mean `{similar}`?")


def _published(plugins: Plugins, provider: str | None, env: Mapping[str, str]) -> list[str]:
    """Return the published models of a provider, by default the configured one up; of all, if none is."""
    factories = sorted(plugins.providers.values(), key=lambda factory: factory.priority)
    configured = next((factory.name for factory in factories if factory.is_configured(env)), None)
    provider_name = provider or configured
    prices = (factory.prices for factory in factories if provider_name in (None, factory.name))
    return [model.name for source in prices if source is not None for model in source.models()]


def _skills(definition: DefinitionFile) -> Iterator[tuple[AnySkill, KeyPath, Reporter]]:
    for draft in definition.drafts.values():
        for skill in draft.expert.skills:
            yield skill, (*draft.at, "skills", skill.name), draft.report


def _check_skill(skill: AnySkill, at: KeyPath, report: Reporter, plugins: Plugins) -> None:
    if isinstance(skill, AgentSkill):
        _check_folder(skill, at, report)
        return
    if isinstance(skill, PluginSkill) and not skill.plugin:
        return  # a missing plugin name has been reported already
    factory = next((factory for factory in plugins.skills if factory.handles(skill)), None)
    if factory is None and isinstance(skill, PluginSkill):
        names = [f.name for f in plugins.skills if f.handles(skill.model_copy(update={"plugin": f.name}))]
        available = ", ".join(sorted(names)) or "none"
        hint = suggestion(skill.plugin, names)
        report.error((*at, "plugin"), f"no plugin `{skill.plugin}` is installed; there are: {available}{hint}")
    elif isinstance(skill, InteractiveSkill):
        _check_choice(skill, at, report, [tool.name for tool in skill.tools])
    elif factory is not None:
        try:
            factory.check(skill)
        except SkillError as error:
            report.error((*at, "settings"), str(error))
        if (specs := factory.known_tools(skill)) is not None:
            _check_choice(skill, at, report, [spec.name for spec in specs])


def _warn_of_lacks(skill: McpStdioSkill, at: KeyPath, report: Reporter, env: Mapping[str, str]) -> None:
    """Warn of a program and of variables that are not here; they may be where the Expert runs."""
    if which(skill.command, path=env.get("PATH")) is None and "/" not in skill.command:
        report.warn((*at, "command"), f"there is no program `{skill.command}` in PATH")
    for index, name in enumerate(skill.required_env):
        if not env.get(name):
            report.warn((*at, "requiredEnv", index), f"the variable {name} is not set")


def _check_folder(skill: AgentSkill, at: KeyPath, report: Reporter) -> None:
    if not skill.path:
        return  # a missing path has been reported already
    # imported here, because few projects have Agent Skills
    from perstack.config.context_files import read_skill, skill_file_of
    from perstack.core.definitions.agent_skills import NotASkill

    try:
        folder = read_skill(Path(skill.path))
    except NotASkill as error:
        report.error(at, f"{skill.path} {error}")
        return
    file = f"{skill.path}/{skill_file_of(folder)}"
    for problem in folder.problems:
        report.error(at, f"{file}: {problem}")
    if folder.head.ignored:
        names = ", ".join(f"`{name}`" for name in folder.head.ignored)
        report.warn(at, f"{file}: has no effect: {names}")
    if folder.head.allowed_tools:
        tools = " ".join(folder.head.allowed_tools)
        report.warn(at, f"{file}: `allowed-tools: {tools}` allows nothing here: say it in [permissions]")


def _check_choice(skill: Skill, at: KeyPath, report: Reporter, names: Sequence[str]) -> None:
    for key, patterns in (("pick", skill.pick), ("omit", skill.omit)):
        for index, pattern in enumerate(patterns):
            is_question = pattern == ASK_USER and is_base_skill(skill)
            if not is_question and not any(is_picked(name, [pattern], ()) for name in names):
                hint = suggestion(pattern, names)
                report.warn((*at, key, index), f"`{pattern}` matches no tool of this skill{hint}")
