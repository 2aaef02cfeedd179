"""The table of compatible endpoints in docs/providers.md, printed from the rows of `perstack_openai.profiles`.

`python tests/support/profiles_page.py` writes it.
"""

from __future__ import annotations

from pathlib import Path

from perstack_openai.profiles import FORMS, PLAIN, PROFILES, Profile

PAGE = Path(__file__).parents[2] / "docs" / "providers.md"
_HEAD, _TAIL = "<!-- profiles -->\n", "<!-- end of profiles -->\n"
_COLUMNS = (
    "provider",
    "address",
    "variables",
    "default model",
    "not sent",
    "reasoning comes and goes back as",
    "usage comes in",
)
_USAGE = {"top": "the chunk", "choice": "its choice", "x_groq": "`x_groq`"}


def table() -> str:
    """Return the table."""
    lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS))]
    lines += [_line(_cells(profile)) for profile in (*PROFILES, PLAIN)]
    forms = [f"- {name}: {meaning}" for name, meaning in sorted(FORMS.items())]
    return "\n".join(
        [
            *lines,
            "",
            "What is not sent, besides fields of the request and (`messages.`) of its messages:",
            "",
            *forms,
            "",
        ]
    )


def _cells(profile: Profile) -> list[str]:
    variables = [*profile.keys, *profile.address_variables]
    required = profile.needs_reasoning and f"; `{profile.needs_reasoning}` in every reply with calls"
    return [
        f"`{profile.name}`" if profile.name else "any other, with `baseUrl`",
        profile.address and f"`{profile.address}`",
        ", ".join(f"`{name}`" for name in variables),
        f"`{profile.default_model}`" if profile.default_model else "none",
        ", ".join(name if name in FORMS else f"`{name}`" for name in sorted(profile.refuses)),
        ", ".join(f"`{name}`" for name in profile.reasoning) + (required or ""),
        _USAGE[profile.usage_at],
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def write() -> None:
    """Write the table into its page."""
    before, rest = PAGE.read_text().split(_HEAD)
    PAGE.write_text(before + _HEAD + table() + _TAIL + rest.split(_TAIL)[1])


def printed() -> str:
    """Return the table as it stands on the page."""
    return PAGE.read_text().split(_HEAD)[1].split(_TAIL)[0]


if __name__ == "__main__":
    write()
