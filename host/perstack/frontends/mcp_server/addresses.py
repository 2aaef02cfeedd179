"""The addresses of resources."""

from __future__ import annotations

from urllib.parse import quote, unquote

from perstack.dataclass import dataclass

SCHEME = "perstack://"
JOBS = f"{SCHEME}jobs"
"""The list of Jobs."""


@dataclass(frozen=True, slots=True)
class Address:
    """A URI template with one variable, in braces (RFC 6570, level 1)."""

    template: str

    @property
    def prefix(self) -> str:
        """What stands before the variable."""
        return self.template.partition("{")[0]

    @property
    def suffix(self) -> str:
        """What stands after it."""
        return self.template.partition("}")[2]

    def value_in(self, uri: str) -> str | None:
        """The variable's value, if the template makes this address."""
        if not uri.startswith(self.prefix) or not uri.endswith(self.suffix):
            return None
        raw = uri[len(self.prefix) : len(uri) - len(self.suffix)]
        return unquote(raw) if raw and "/" not in raw else None

    def uri(self, value: str) -> str:
        """The address of one."""
        return f"{self.prefix}{quote(value, safe='@')}{self.suffix}"


JOB = Address(f"{JOBS}/{{id}}")
CHECKPOINT = Address(f"{SCHEME}checkpoints/{{id}}")
EVENTS = Address(f"{SCHEME}runs/{{id}}/events")
EXPERT = Address(f"{SCHEME}experts/{{key}}")
