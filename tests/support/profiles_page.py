"""The table of compatible endpoints in docs/providers.md, printed from the rows of `perstack_openai.profiles`.

`python tests/support/profiles_page.py` writes it.
"""

from __future__ import annotations

from docs_tables import PrintedTable, lines

from perstack_openai.profiles import FORMS, PLAIN, PROFILES, Profile

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
    forms = [f"- {name}: {meaning}" for name, meaning in sorted(FORMS.items())]
    return "\n".join(
        [
            *lines(_COLUMNS, map(_table_cells, (*PROFILES, PLAIN))),
            "",
            "What is not sent, besides fields of the request and (`messages.`) of its messages:",
            "",
            *forms,
            "",
        ]
    )


def _table_cells(profile: Profile) -> list[str]:
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


PRINTED = PrintedTable("profiles", table)

if __name__ == "__main__":
    PRINTED.write()
