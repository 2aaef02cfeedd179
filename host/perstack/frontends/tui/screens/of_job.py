"""What can be done from where one looks at a Job: at one of its Runs, or at a checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from perstack.frontends.shared.command_lines import CommandLine, of_checkpoint, of_job, of_run
from perstack.frontends.shared.entry_rows import asked_at
from perstack.frontends.shared.log_entries import Place, is_delegate
from perstack.frontends.tui.actions import OF_HISTORY, Action
from perstack.frontends.tui.screens.base import OverScreen
from perstack.frontends.tui.screens.commands import CommandsScreen
from perstack.frontends.tui.screens.export import ExportScreen
from perstack.frontends.tui.screens.files import Compared, FilesScreen
from perstack.frontends.tui.screens.rewind import RewindScreen


class OfJob(OverScreen):
    """Actions by their keys; each says what it needs, if that is not there."""

    ACTIONS: ClassVar[tuple[Action, ...]] = OF_HISTORY
    marked: str | None = None
    """The checkpoint that files are compared from."""

    @property
    @abstractmethod
    def job_id(self) -> str:
        """The Job."""

    @property
    @abstractmethod
    def run_id(self) -> str | None:
        """The Run that is chosen, or all is of; None: the whole Job."""

    @property
    @abstractmethod
    def expert(self) -> str:
        """The Expert that continues the Job, as far as it is known."""

    @property
    @abstractmethod
    def place(self) -> Place | None:
        """The checkpoint that is chosen, if one is."""

    @abstractmethod
    def marked_another(self) -> None:
        """Another checkpoint is marked: show it."""

    def keys_that_fit(self, *first: str) -> str:
        """The keys that are most of use, as many as there is room for."""
        keys = [*first, "o opens", "b branches", "d files", "r rewinds", "k commands", "x exports", "F1 every key"]
        end = "Esc back"
        while len("   ".join((*keys, end))) > self.size.width - 2 and len(keys) > 1:
            keys.pop(-2)
        return "   ".join((*keys, end))

    # --- continuing -----------------------------------------------------------------------------------------------

    def action_open_job(self) -> None:
        self.over.open_job(self.job_id)

    def action_branch(self) -> None:
        place = self._needed()
        if place is not None:
            self.over.branch(self.job_id, place.id)

    def action_answer_again(self) -> None:
        place = self._needed()
        if place is None:
            return
        again = None if is_delegate(place.entry.log) else asked_at(place)
        if not place.asks:
            self.notify("Nothing was asked at this checkpoint: choose one that says «asks».", markup=False)
        elif again is None:
            self.notify("A delegate asked this: only what the Coordinator asked is answered again.", markup=False)
        else:
            self.over.branch(self.job_id, place.id, again=again)

    # --- files ----------------------------------------------------------------------------------------------------

    def action_branch_with_files(self) -> None:
        place = self._needed()
        if place is not None:
            job_id, at = self.job_id, place.id
            self.over.show(RewindScreen(self.over, job_id, at, then=lambda: self.over.branch(job_id, at)))

    def action_rewind(self) -> None:
        place = self._needed()
        if place is not None:
            self.over.show(RewindScreen(self.over, self.job_id, place.id))

    def action_mark(self) -> None:
        place = self._needed()
        if place is not None:
            self.marked = None if self.marked == place.id else place.id
            self.marked_another()

    def action_files(self) -> None:
        self.over.show(FilesScreen(self.over, self.job_id, self._compared()))

    def _compared(self) -> list[Compared]:
        place, run_id = self.place, self.run_id
        if place is None:
            of_run = [] if run_id is None else [Compared(f"of {run_id}", run_id=run_id)]
            return [*of_run, Compared(f"of {self.job_id}")]
        marked = self.marked
        from_mark = [] if marked in (None, place.id) else [Compared("since the mark", f"{marked}..{place.id}")]
        step, now = Compared(f"of step {place.entry.step}", place.id), Compared("from there until now", f"{place.id}..")
        return [*from_mark, step, now]

    # --- copying --------------------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        self.over.copy(self.run_id or self.job_id if self.place is None else self.place.id)

    def action_commands(self) -> None:
        self.over.show(CommandsScreen(self.over, self._commands()))

    def action_export(self) -> None:
        self.over.show(ExportScreen(self.over, self.job_id, None if self.place is None else self.place.id))

    def _commands(self) -> list[CommandLine]:
        place, given = self.place, self.over.given
        of_place = (
            []
            if place is None
            else of_checkpoint(self.job_id, place.id, place.expert, given, asks=place.asks, marked=self.marked)
        )
        return [
            *of_place,
            *([] if self.run_id is None else of_run(self.run_id, given)),
            *of_job(self.job_id, self.expert, given),
        ]

    def _needed(self) -> Place | None:
        if self.place is None:
            self.notify("Choose a checkpoint first: Tab goes to them.", severity="warning", markup=False)
        return self.place
