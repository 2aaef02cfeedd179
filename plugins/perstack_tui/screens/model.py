"""The screen that chooses the model of the next Runs of a tab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input
from typing_extensions import override

from perstack.core.base.text import one_line
from perstack.core.definitions.models import split_full_name
from perstack.doors.shared.text import shorten
from perstack_tui.screens.base import ListScreen, ScreenHost
from perstack_tui.session import Session
from perstack_tui.view.models import ModelRow, model_rows, unknown_model_warning
from perstack_tui.view.styled_text import Line, Span

_MAX_NAME_CHARS = 200  # maximum characters of a typed name


class ModelScreen(ListScreen[ModelRow]):
    """The model screen: typing filters the known models, or names one; Enter uses the chosen one."""

    TITLE_TEXT = "Model"
    KEYS = "type to filter, or a name   Up, Down choose   Enter uses it   Esc back"
    EMPTY = "No models are known."
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "row(-1)", show=False, priority=True),
        Binding("down", "row(1)", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    ModelScreen Input { dock: bottom; margin: 0 0 1 0; border: round $rule; background: $background; }
    ModelScreen Input:focus { border: round $primary; }
    """

    def __init__(self, screen_host: ScreenHost, job_session: Session) -> None:
        super().__init__(screen_host)
        self._session = job_session
        self._configured_name = ""  # name of the model that the definition and the options configure
        self._known_names: Sequence[str] = ()
        self._input = Input(id="model", max_length=_MAX_NAME_CHARS, select_on_focus=False)
        self._input.cursor_blink = False

    @override
    def body(self) -> list[Widget]:
        return [self._list, self._input]

    @override
    def initial_focus(self) -> Widget:
        return self._input

    @override
    async def read(self) -> Sequence[ModelRow]:
        experts, key = self.screen_host.host.experts, self._session.expert_key or ""
        self._configured_name = experts.model(key)
        self.rows = self._rows()
        # show the configured model first: listing a provider's models may take long
        self.show_rows(self.initial_index())
        self._known_names = await experts.models(key)
        return self._rows()

    def _rows(self) -> Sequence[ModelRow]:
        return model_rows(self._configured_name, self._known_names, self._session.model, self._input.value)

    @override
    def initial_index(self) -> int:
        return next((index for index, row in enumerate(self.rows) if row.is_in_force), 0)

    @override
    def line(self, row: ModelRow, is_chosen: bool, width: int) -> Line:
        name = shorten(one_line(row.name), max(8, width * 2 // 3))
        note = shorten(one_line(row.note), max(8, width - len(name) - 2))
        return (Span(name, "strong" if is_chosen else ""), Span(f"  {note}", "warn" if row.is_unknown else "dim"))

    @override
    def update_head(self) -> None:
        provider = one_line(split_full_name(self._configured_name)[0])
        self.title_line(
            (Span("Model", "strong"), Span(f"  of {provider}, for the next Runs of this tab" if provider else ""))
        )

    def action_row(self, step: int) -> None:
        self._list.move(step)

    @on(Input.Changed)
    def _on_typed(self) -> None:
        self.rows = self._rows()
        is_typed = bool(self._input.value.strip())
        self.show_rows(0 if is_typed else self.initial_index())

    @on(Input.Submitted)
    def _on_submitted(self) -> None:
        if self.chosen_row is not None:
            self.open(self.chosen_row)

    @override
    def open(self, row: ModelRow) -> None:
        self._session.use_model(None if row.is_default else row.name)
        if warning := unknown_model_warning(row.name, self._known_names):
            self.notify(warning, severity="warning", markup=False)
        self.dismiss()
