"""Options go before the Expert's own settings, those before the file's, those before the defaults."""

from __future__ import annotations

from dataclasses import fields

import pytest

from perstack.config.resolved_settings import ChosenSettings, resolve_settings
from perstack.core.definitions.experts import Expert
from perstack.core.definitions.keys import Key, Rule
from perstack.core.definitions.options import BUDGET_OPTIONS, OPTIONS
from perstack.core.definitions.permissions import Widening
from perstack.core.definitions.project import Project
from perstack.core.definitions.recorded_definition import definition_of, restore_project
from perstack.core.definitions.settings import Budget, ContextPolicy, Limits, Overrides, ProviderSetting, SharedKeys

ANTHROPIC = ProviderSetting(provider_name="anthropic", setting={"baseUrl": "https://a.example"})
OPENAI = ProviderSetting(provider_name="openai", setting={"organization": "o"})


def expert(**fields):
    return Expert(key="e", instruction="x", **fields)


def model_of(settings):
    """The first model that is of the chosen provider."""
    return next((one.models[0].name for one in settings.models if one.belongs_to_provider), None)


def test_without_any_settings_the_defaults_hold():
    limits = Limits(max_steps=100, max_depth=8, max_repeats=10, context=ContextPolicy())
    assert resolve_settings(Project(), expert()) == ChosenSettings((), None, None, limits)
    assert limits == limits.model_copy(update={"max_retries": 5, "timeout": 300_000})


@pytest.mark.parametrize("name", ["max_steps", "max_depth", "max_repeats"])
def test_a_limit_of_zero_is_no_limit_and_goes_before_one_of_the_file(name):
    assert getattr(resolve_settings(Project(**{name: 3}), expert(**{name: 0})).limits, name) is None
    assert getattr(resolve_settings(Project(**{name: 0}), expert()).limits, name) is None
    assert getattr(resolve_settings(Project(**{name: 0}), expert(**{name: 3})).limits, name) == 3


def test_no_limit_of_steps_on_the_command_line_goes_before_all_and_is_remembered():
    asked = Overrides(max_steps=0)
    assert resolve_settings(Project(max_steps=3), expert(max_steps=4), asked).limits.max_steps is None
    assert asked.chosen == ("maxSteps",)


def test_a_log_of_an_earlier_version_has_none_of_these_limits():
    assert Limits() == Limits(max_steps=None, max_depth=None, max_repeats=None)


def test_the_default_limit_is_for_the_steps_of_a_new_query_and_one_that_is_given_for_the_whole_job():
    assert resolve_settings(Project(), expert(), steps_before=250).limits.max_steps == 350
    assert resolve_settings(Project(max_steps=300), expert(), steps_before=250).limits.max_steps == 300


@pytest.mark.parametrize(
    ("name", "of_limits"),
    [("max_steps", True), ("max_retries", True), ("timeout", True), ("reasoning_budget", False), ("model", False)],
)
def test_the_nearest_level_that_says_something_wins(name, of_limits):
    def resolved(option, own, file):
        words = str if name == "model" else int
        fields = [{} if value is None else {name: words(value)} for value in (option, own, file)]
        settings = resolve_settings(Project(**fields[2]), expert(**fields[1]), Overrides(**fields[0]))
        return int(model_of(settings) if name == "model" else getattr(settings.limits if of_limits else settings, name))

    assert resolved(1, 2, 3) == 1
    assert resolved(None, 2, 3) == 2
    assert resolved(None, None, 3) == 3


def test_no_retries_at_all_is_not_taken_for_nothing_said():
    assert resolve_settings(Project(max_retries=3), expert(max_retries=0)).limits.max_retries == 0


def test_the_files_model_and_provider_go_together():
    settings = resolve_settings(Project(model="claude", provider=ANTHROPIC), expert())
    assert (model_of(settings), settings.provider) == ("claude", ANTHROPIC)


def test_another_provider_on_the_command_line_leaves_model_and_setting_behind():
    project = Project(model="claude", provider=ANTHROPIC)
    settings = resolve_settings(project, expert(model="haiku"), Overrides(provider="openai"))
    assert settings.provider == ProviderSetting(provider_name="openai")
    assert model_of(settings) is None


def test_another_provider_with_a_model_gets_that_model():
    project = Project(model="claude", provider=ANTHROPIC)
    settings = resolve_settings(project, expert(), Overrides(provider="openai", model="gpt"))
    assert (model_of(settings), settings.provider) == ("gpt", ProviderSetting(provider_name="openai"))


def test_the_files_own_provider_on_the_command_line_keeps_model_and_setting():
    project = Project(model="claude", provider=ANTHROPIC)
    settings = resolve_settings(project, expert(), Overrides(provider="anthropic"))
    assert (model_of(settings), settings.provider) == ("claude", ANTHROPIC)


def test_a_model_that_was_written_for_no_provider_goes_with_any():
    settings = resolve_settings(Project(model="m"), expert(), Overrides(provider="openai"))
    assert (model_of(settings), settings.provider) == ("m", ProviderSetting(provider_name="openai"))


def test_an_experts_own_provider_leaves_the_files_model_behind():
    project = Project(model="claude", provider=ANTHROPIC)
    settings = resolve_settings(project, expert(provider=OPENAI))
    assert (model_of(settings), settings.provider) == (None, OPENAI)


def test_a_provider_on_the_command_line_finds_its_setting_in_the_expert_or_in_the_file():
    project = Project(model="claude", provider=ANTHROPIC)
    own = expert(model="gpt", provider=OPENAI)
    for name, model, found in (("openai", "gpt", OPENAI), ("anthropic", "claude", ANTHROPIC)):
        settings = resolve_settings(project, own, Overrides(provider=name))
        assert (model_of(settings), settings.provider) == (model, found)


def test_tables_of_one_provider_at_two_levels_are_not_merged():
    own = expert(provider=ProviderSetting(provider_name="anthropic"))
    settings = resolve_settings(Project(model="claude", provider=ANTHROPIC), own)
    assert (model_of(settings), settings.provider) == ("claude", ProviderSetting(provider_name="anthropic"))


def test_what_holds_for_one_process_is_neither_recorded_nor_taken_from_a_record() -> None:
    asked = Overrides(model="m", max_steps=2, unattended=True, strict_skills=True, widening=Widening(source="f"))
    recorded = definition_of(Project(), expert(), asked)
    assert b'"chosen":{"model":"m","maxSteps":2}}' in recorded.to_json()
    read = type(recorded).model_validate_json(recorded.to_json().replace(b'"model":"m"', b'"widening":{"source":"f"}'))
    assert Overrides(max_steps=3).or_else(read.chosen) == Overrides(max_steps=3)


def test_every_shared_key_of_the_file_is_recorded_and_in_force_again() -> None:
    written = Project(model="m", max_retries=2, tool_search="off", result_limit=300, mask_secrets=True, compact_at=0.5)
    recorded = definition_of(written, expert(), Overrides())
    again = restore_project(
        type(recorded).model_validate_json(recorded.to_json()), Project(model="of today", result_limit=999)
    )
    assert {name: getattr(again, name) for name in SharedKeys.model_fields} == {
        name: getattr(written, name) for name in SharedKeys.model_fields
    }


def test_a_limit_without_a_value_in_a_log_is_the_default_of_its_key() -> None:
    for name in Limits.model_fields.keys() & SharedKeys.model_fields.keys():
        (key,) = (part for part in SharedKeys.model_fields[name].metadata if isinstance(part, Key))
        assert Limits.model_fields[name].default == (None if key.zero_lifts else key.default)


def test_each_option_has_the_name_of_a_field_and_the_minimum_of_its_key() -> None:
    keys = {**SharedKeys.model_fields, **Budget.model_fields}
    least = {
        name: rule.least
        for name in OPTIONS
        for rule in (keys[name].metadata if name in keys else ())
        if isinstance(rule, Rule) and rule.least is not None and name not in ("reasoning_budget", "compaction")
    }
    assert {name: option.least for name, option in OPTIONS.items() if option.least is not None} == least
    assert set(OPTIONS) <= {field.name for field in fields(Overrides)}
    assert set(BUDGET_OPTIONS) == set(Budget.model_fields)
