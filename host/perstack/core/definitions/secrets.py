"""Masking of secrets in definitions before they are recorded, and restoring them from today's definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perstack.core.base.records import map_texts, texts_in
from perstack.core.definitions.experts import Expert, Iterate
from perstack.core.definitions.settings import ProviderSetting
from perstack.core.definitions.skills import AnySkill, McpSseSkill, McpStdioSkill, OAuth, PluginSkill
from perstack.core.secrets.masking import (
    digest_of_secret,
    has_masked,
    masked_address,
    masked_args,
    masked_line,
    masked_settings,
    masked_variables,
    secrets_in,
    shape,
    unmask,
)


def without_secrets(expert: Expert) -> Expert:
    """Return the definition as it is recorded, without secrets.

    Provider settings are removed, and so are values of headers and OAuth secrets that name no variable. Secrets in
    arguments, variables, addresses and settings are replaced by their digests.
    """
    provider = None if expert.provider is None else ProviderSetting(provider_name=expert.provider.provider_name)
    update: dict[str, object] = {"provider": provider, "skills": tuple(map(skill_without_secrets, expert.skills))}
    if expert.iterate is not None:
        update["iterate"] = iterate_without_secrets(expert.iterate)
    return expert.model_copy(update=update)


def iterate_without_secrets(iterate: Iterate) -> Iterate:
    """Return iteration settings with the secrets of an evaluation command masked."""
    match iterate.evaluator:
        case str() as line:
            return iterate.model_copy(update={"evaluator": masked_line(line)})
        case tuple() as argv:
            return iterate.model_copy(update={"evaluator": masked_args(argv)})
        case _:
            return iterate


def with_secrets(recorded_expert: Expert, todays_expert: Expert | None) -> Expert:
    """Return a recorded definition with the secrets of today's skills, matched by name."""
    if todays_expert is None:
        return recorded_expert
    current = {skill.name: skill for skill in todays_expert.skills}
    skills = tuple(_unmask_skill(skill, current.get(skill.name)) for skill in recorded_expert.skills)
    if skills == recorded_expert.skills:
        return recorded_expert  # no copy: each Job that waits would keep its own
    return recorded_expert.model_copy(update={"skills": skills})


MASKED = "(not recorded)"


def skill_without_secrets(skill: AnySkill) -> AnySkill:
    """Return a skill as it is recorded."""
    match skill:
        case McpStdioSkill():
            return skill.model_copy(update={"args": masked_args(skill.args), "env": masked_variables(skill.env)})
        case McpSseSkill():
            return _masked_remote(skill)
        case PluginSkill():
            return skill.model_copy(update={"settings": masked_settings(skill.settings)})
        case _:
            return skill


def _masked_remote(skill: McpSseSkill) -> McpSseSkill:
    headers = {name: _mask(value) for name, value in skill.headers.items()}
    oauth = skill.oauth
    if oauth is not None:
        masked = {name: value and _mask(value) for name, value in _oauth_secrets(oauth).items()}
        endpoint = oauth.identity_endpoint
        oauth = oauth.model_copy(update={**masked, "identity_endpoint": endpoint and masked_address(endpoint)})
    return skill.model_copy(update={"endpoint": masked_address(skill.endpoint), "headers": headers, "oauth": oauth})


def _oauth_secrets(oauth: OAuth) -> Mapping[str, str | None]:
    return {
        "client_secret": oauth.client_secret,
        "private_key": oauth.private_key,
        "identity_client_secret": oauth.identity_client_secret,
    }


def _mask(value: str) -> str:
    return value if "${" in value else MASKED


def _unmask_skill(skill: AnySkill, today: AnySkill | None) -> AnySkill:
    """Return a recorded skill with the secrets of today's skill; unchanged if that is missing or of another type."""
    if isinstance(skill, McpStdioSkill) and isinstance(today, McpStdioSkill):
        secrets = secrets_of(today)
        args = _restore_args(skill.args, today.args, masked_args(today.args), secrets)
        # a variable that today's skill lacks is empty, so that the number of texts stays equal
        variables = {name: today.env.get(name, "") for name in skill.env}
        env = _restore_args(
            tuple(skill.env.values()), tuple(variables.values()), tuple(masked_variables(variables).values()), secrets
        )
        return skill.model_copy(update={"args": args, "env": dict(zip(skill.env, env, strict=True))})
    if isinstance(skill, McpSseSkill) and isinstance(today, McpSseSkill):
        masked = (masked_address(today.endpoint),)
        (endpoint,) = _restore_args((skill.endpoint,), (today.endpoint,), masked, secrets_of(today))
        update: dict[str, object] = {"endpoint": endpoint}
        if MASKED in skill.headers.values():
            update["headers"] = today.headers
        if skill.oauth is not None:
            is_masked = has_masked((skill.oauth.identity_endpoint or "",))
            if is_masked or MASKED in _oauth_secrets(skill.oauth).values():
                update["oauth"] = today.oauth
        return skill.model_copy(update=update)
    if isinstance(skill, PluginSkill) and isinstance(today, PluginSkill):
        return _unmask_plugin(skill, today)
    return skill


def _unmask_plugin(skill: PluginSkill, today: PluginSkill) -> PluginSkill:
    recorded, current = tuple(texts_in(skill.settings)), tuple(texts_in(today.settings))
    masked = tuple(texts_in(masked_settings(today.settings)))
    texts = iter(_restore_args(recorded, current, masked, secrets_of(today)))
    return skill.model_copy(update={"settings": map_texts(skill.settings, lambda _: next(texts))})


def secrets_of(skill: AnySkill) -> list[str]:
    """Return the secrets that are written out in a skill's arguments, variables, address and settings."""
    match skill:
        case McpStdioSkill():
            args, env = skill.args, skill.env
            return [
                *secrets_in(lambda substitute: masked_args(args, substitute)),
                *secrets_in(lambda substitute: masked_variables(env, substitute)),
            ]
        case McpSseSkill():
            endpoint = skill.endpoint
            return secrets_in(lambda substitute: masked_address(endpoint, substitute))
        case PluginSkill():
            settings = skill.settings
            return secrets_in(lambda substitute: masked_settings(settings, substitute))
        case _:
            return []


def _restore_args(
    recorded: tuple[str, ...], today: tuple[str, ...], masked_today: tuple[str, ...], secrets: Iterable[str]
) -> tuple[str, ...]:
    """Restore secrets by digest. If some are unknown, return today's texts if they differ only in secrets."""
    if not has_masked(recorded):
        return recorded
    secret_by_digest = {digest_of_secret(secret): secret for secret in secrets}
    texts = tuple(unmask(text, secret_by_digest) for text in recorded)
    if has_masked(texts) and shape(recorded) == shape(masked_today):
        return today
    return texts
