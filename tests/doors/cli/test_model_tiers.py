"""`defaultModelTier` of an Expert: which model it means, and what is named before it."""

from __future__ import annotations

import json

import pytest
from terminal import TEAM, Terminal, reply

KEYS = {"PERSTACK_SCRIPT": "", "ANTHROPIC_API_KEY": "key", "GROQ_API_KEY": "key"}
SOLO = '[experts.solo]\ninstruction = "x"\n'


def named(terminal: Terminal, toml: str, *args: str) -> tuple[str, str]:
    """Provider and model that `solo` would be sent to, as the first Run would take them."""
    terminal.project(toml)
    done = terminal.call("expert", "show", "solo", "--json", *args, env=KEYS)
    assert done.code == 0, done.err
    shown = json.loads(done.out)
    return shown["provider"], shown["model"]


@pytest.mark.parametrize(
    ("top", "own", "args", "model"),
    [
        ("", "low", (), ("anthropic", "claude-haiku-4-5")),
        ("", "middle", (), ("anthropic", "claude-sonnet-5")),
        ("", "high", (), ("anthropic", "claude-opus-5")),
        ('model = "claude-sonnet-4-5"', "high", (), ("anthropic", "claude-opus-5")),
        ("", "high", ("--model", "claude-sonnet-4-5"), ("anthropic", "claude-sonnet-4-5")),
        ("", 'high"\nmodel = "claude-sonnet-4-5', (), ("anthropic", "claude-sonnet-4-5")),
        ('[models]\nhigh = "claude-opus-4-6"', "high", (), ("anthropic", "claude-opus-4-6")),
        ('[models]\nhigh = "groq/big"', "high", (), ("groq", "big")),
        ('[models]\nhigh = "groq/big"', "low", (), ("anthropic", "claude-haiku-4-5")),
        ('provider.providerName = "groq"\nmodel = "top"', "high", (), ("groq", "top")),
        ('provider.providerName = "groq"\n[models]\nhigh = "big"', "high", (), ("groq", "big")),
        ("", "low", ("--provider", "groq"), ("groq", "openai/gpt-oss-120b")),
    ],
)
def test_a_tier_means_the_providers_model_unless_one_is_named_nearer(
    terminal: Terminal, top: str, own: str, args: tuple[str, ...], model: tuple[str, str]
) -> None:
    assert named(terminal, f'{top}\n{SOLO}defaultModelTier = "{own}"\n', *args) == model


def test_a_tier_that_the_provider_has_no_model_for_is_said_in_one_line(terminal: Terminal) -> None:
    toml = TEAM.replace("[experts.helper]", '[experts.helper]\ndefaultModelTier = "low"')
    assert toml != TEAM
    terminal.project(toml, lead=[reply("", ("helper", {"query": "x"})), reply("ok")], helper=[reply("done")])
    done = terminal.call("run", "lead", "q", "--provider", "scripted")
    assert done.code == 0
    starts = {event["expertKey"]: event["model"] for event in done.events if event["type"] == "startRun"}
    assert starts == {"lead": "scripted", "helper": "scripted"}
    (line,) = [line for line in done.err.splitlines() if "tier" in line]
    assert line == (
        "perstack: scripted has no model of tier low, so scripted/scripted is used; name one as `low` in [models]"
    )


def test_each_run_of_a_job_has_the_model_of_its_own_tier(terminal: Terminal) -> None:
    toml = TEAM.replace("[experts.helper]", '[experts.helper]\ndefaultModelTier = "low"')
    terminal.project(
        f'[models]\nlow = "small"\n{toml}',
        lead=[reply("", ("helper", {"query": "x"})), reply("ok")],
        helper=[reply("y")],
    )
    done = terminal.call("run", "lead", "q", "--provider", "scripted", "--job-id", "job")
    starts = {event["expertKey"]: event["model"] for event in done.events if event["type"] == "startRun"}
    assert (done.code, starts) == (0, {"lead": "scripted", "helper": "small"})
    assert terminal.call("replay", "job").code == 0


def test_validate_shows_the_tier_or_the_model_that_the_file_names_for_it(terminal: Terminal) -> None:
    high = '[experts.other]\ninstruction = "x"\ndefaultModelTier = "high"\n'
    toml = f'model = "top"\n[models]\nhigh = "big"\n{SOLO}defaultModelTier = "low"\n{high}'
    terminal.project(toml)
    rows = {line.split()[0]: line.split()[4:] for line in terminal.call("validate").out.splitlines() if "1.0.0" in line}
    assert rows == {"solo": ["low", "tier"], "other": ["big"]}
    shown = json.loads(terminal.call("validate", "--json").out)["experts"]
    assert [(one["model"], one["defaultModelTier"]) for one in shown] == [(None, "low"), (None, "high")]


@pytest.mark.parametrize("tier", ["medium", "LOW", ""])
def test_a_tier_that_does_not_exist_is_refused(terminal: Terminal, tier: str) -> None:
    terminal.project(f'{SOLO}defaultModelTier = "{tier}"\n')
    done = terminal.call("validate")
    assert done.code == 2
    assert "experts.solo.defaultModelTier" in done.err + done.out
