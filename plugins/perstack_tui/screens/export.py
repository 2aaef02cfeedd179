"""The screen that writes a Job or a checkpoint to a file or folders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input
from typing_extensions import override

from perstack.core.base.text import count, one_line
from perstack.doors.shared import export
from perstack.doors.shared.next_step_phrases import tui_phrase
from perstack.doors.shared.text import pad, shorten
from perstack.errors import PerstackError
from perstack_tui.screens.base import ListScreen, ScreenHost
from perstack_tui.view.styled_text import Line, Span

_CHECKPOINT = "checkpoint"


class _ExportFormat(NamedTuple):
    name: str
    description: str
    default_path: str


class ExportScreen(ListScreen[_ExportFormat]):
    """The export screen: Up and Down choose the format; the path is typed below, and Enter writes it."""

    TITLE_TEXT = "Export"
    KEYS = "Up, Down choose the form   type where   Enter writes it   Esc back"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "form(-1)", show=False, priority=True),
        Binding("down", "form(1)", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    ExportScreen Input { dock: bottom; margin: 0 0 1 0; border: round $rule; background: $background; }
    ExportScreen Input:focus { border: round $primary; }
    """

    def __init__(self, screen_host: ScreenHost, job_id: str, checkpoint_id: str | None) -> None:
        """Offer to export a Job, and with `checkpoint_id` also this checkpoint."""
        super().__init__(screen_host)
        self._job_id = job_id
        self._checkpoint_id = checkpoint_id
        self._input = Input(id="where", select_on_focus=False)

    @override
    def body(self) -> list[Widget]:
        return [self._list, self._input]

    @override
    def initial_focus(self) -> Widget:
        return self._input

    @override
    async def read(self) -> Sequence[_ExportFormat]:
        formats = [
            _ExportFormat(name, export.OWN_FORMS.get(name, "folders of another program"), self._default_path(name))
            for name in export.forms_of(self.screen_host.host)
        ]
        if self._checkpoint_id is not None:
            description = "this checkpoint with its messages, as JSON"
            formats.insert(0, _ExportFormat(_CHECKPOINT, description, f"{self._checkpoint_id}.json"))
        return formats

    def _default_path(self, name: str) -> str:
        return f"{self._job_id}.{name}" if name in export.OWN_FORMS else f"{self._job_id}-{name}"

    @override
    def line(self, row: _ExportFormat, is_chosen: bool, width: int) -> Line:
        name = pad(one_line(row.name), 12)
        return (Span(name, "strong" if is_chosen else ""), Span(shorten(row.description, max(8, width - 12)), "dim"))

    @override
    def update_head(self) -> None:
        self.title_line((Span("Export  ", "strong"), Span(one_line(self._checkpoint_id or self._job_id))))
        self._show_default_path()

    def action_form(self, step: int) -> None:
        self._list.move(step)

    def _show_default_path(self) -> None:
        if self.chosen_row is not None:
            self._input.value = self.chosen_row.default_path

    @override
    def open(self, row: _ExportFormat) -> None:
        self._show_default_path()

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        if self.chosen_row is not None and self._input.value.strip():
            self.run_worker(self._write(self.chosen_row, self._input.value.strip()), exclusive=True, group="write")

    async def _write(self, export_format: _ExportFormat, path: str) -> None:
        try:
            outcome = await self._write_file(export_format, path)
        except PerstackError as error:
            self.notify(error.text_for(tui_phrase), severity="error", markup=False)
            return
        self.notify(one_line(outcome), title="written", markup=False)
        self.dismiss()

    async def _write_file(self, export_format: _ExportFormat, path: str) -> str:
        host = self.screen_host.host
        if export_format.name not in (*export.OWN_FORMS, _CHECKPOINT):
            files = await export.folders_of(host, self._job_id, export_format.name)
            target = await asyncio.to_thread(export.write_new_files, files, Path(path), "it", path)
            return f"{target}: {count(len(files), 'file')}"
        if export_format.name == _CHECKPOINT and self._checkpoint_id is not None:
            content = (await host.jobs.checkpoint(self._checkpoint_id, job_id=self._job_id)).to_json() + b"\n"
        elif export_format.name == "json":
            content = await export.document_of(host, self._job_id)
        else:
            content = export.lines_of(await host.jobs.logs(self._job_id))
        await asyncio.to_thread(export.write_new_file, content, Path(path), path)
        return path
