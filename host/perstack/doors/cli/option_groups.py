"""The headings under which `--help` lists the options of a command that drives a Job: it has some thirty."""

from __future__ import annotations

import click

from perstack.core.definitions.settings import Budget

_OWN = "Options"
_GROUPS: dict[str, tuple[str, ...]] = {  # the options under each heading, by parameter
    _OWN: (),  # every other option, `--help` among them
    "An existing Job": (
        *("go_on", "continue_job", "resume_from", "with_files", "yes", "is_answer"),
        *("answer", "settle", "before_compaction"),
    ),
    "Output": ("output", "stream", "quiet", "compact", "no_input"),
    "Model": ("provider", "model", "reasoning_budget", "max_retries", "timeout", "compaction", "recording"),
    "Limits": (*Budget.model_fields, "max_steps", "total_cost", "total_tokens"),
    "Tools": ("runtime", "permissions", "open", "strict_skills", "unattended"),
    "Project": ("config", "workspace", "storage", "env_path", "dispatcher", "is_driven"),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names}


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of each group, in the order of the command."""
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in _GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                records[_GROUP_OF.get(param.name or "", _OWN)].append(record)
        for group, rows in records.items():
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
