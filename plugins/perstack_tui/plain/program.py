"""The linear mode's reaction to a typed line, depending on the state of the shown Job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from perstack.core.base.ids import place_of
from perstack.core.base.text import count, one_line
from perstack.core.definitions.experts import Expert
from perstack.core.jobs.answer_reading import DENIES, accepted_answers, yes_or_no
from perstack.core.runs.open_questions import OpenQuestion
from perstack.doors.shared.consent import TERMINAL, fitted_change, page_of
from perstack.doors.shared.job_printer import JobPrinter, WriteLine
from perstack.doors.shared.live_project import ReloadedProject
from perstack.doors.shared.log_view import is_delegate, open_question_at
from perstack.doors.shared.next_step_phrases import plain_phrase
from perstack.doors.shared.question_forms import question_text, select_option
from perstack.doors.shared.screen import Screen
from perstack.errors import PerstackError
from perstack.host import Host
from perstack_tui.actions import COMMANDS, HINTS
from perstack_tui.plain.lists import JobLines, Lists, status_lines
from perstack_tui.session import NO_EXPERT, Session, no_change_message
from perstack_tui.view.lines import STATES, filter_experts, hint_of
from perstack_tui.view.questions import SETTLEMENTS, answer_of_key, question_hint
from perstack_tui.view.styled_text import clean

NAMES = {command.name: command for command in COMMANDS}
_STOPS = "Ctrl-C"


class _OpenJob:
    """An open Job, or a future one, with its session and the printer of its events."""

    def __init__(
        self,
        host: Host,
        write_line: WriteLine,
        screen: Callable[[], Screen],
        on_change: Callable[[Session], None],
        *,
        drives: bool,
    ) -> None:
        self.lines = JobLines(write_line)
        self.printer = JobPrinter(self.lines.write_line, screen, plain_phrase)
        self.session = Session(host, None, on_change, self.printer, plain_phrase, drives=drives)
        self.was_busy = False
        self.shown_question_id: str | None = None  # id of the question that was printed last; None without one
        self.is_whole = True  # False if its call was too long to print completely, so that only a no is accepted

    @property
    def name(self) -> str:
        return self.session.expert_key or self.session.job_id or "new"


class PlainProgram:
    """The linear mode without its terminal: it handles input lines and writes output lines."""

    def __init__(
        self,
        host: Host,
        live: ReloadedProject | None,
        write_line: WriteLine,
        *,
        screen: Callable[[], Screen],
        discard: Callable[[], None] = lambda: None,
        drives: bool = False,
    ) -> None:
        """Write the parts of each line with `write_line`, for the current `screen`.

        `discard` drops earlier input before a question. With `drives`, answered Jobs are driven here, not by workers.
        """
        self.host = host
        self.live = live
        self.has_left: asyncio.Event = asyncio.Event()  # set when no Job is driven here any more: the process may exit
        self._write = write_line
        self._screen = screen
        self._discard = discard
        self._drives = drives
        self._open_jobs: list[_OpenJob] = []
        self._shown_index = 0
        self._draft: list[str] = []
        self._experts: list[Expert] = []
        self._lists = Lists(host)
        self._settling_index: int | None = None  # index of the unsettled call in question; None without one
        self._asks_to_leave = False
        self._is_leaving = False

    # --- display --------------------------------------------------------------------------------------------------

    def write_line(self, text: str) -> None:
        """Write text of any origin as lines."""
        for line in clean(text).split("\n"):
            self._write(line.rstrip())

    @property
    def shown_job(self) -> _OpenJob:
        return self._open_jobs[self._shown_index]

    @property
    def sessions(self) -> list[Session]:
        return [shown_job.session for shown_job in self._open_jobs]

    def begin(self, expert: str | None = None, query: str | None = None, job_id: str | None = None) -> None:
        """Show the Job, or a new one of the Expert, and send the query if there is one."""
        self.write_line("perstack start, line by line; /help lists the commands")
        if job_id is not None:
            self._open(job_id)
            return
        self._add_job()
        if expert is None:
            self._choose("")
            return
        self._use_expert(expert, prints_prompt=query is None)
        if query is not None:
            self.shown_job.session.send(query)

    def _add_job(self) -> _OpenJob:
        if self._open_jobs:
            self.shown_job.lines.hold()
        open_job = _OpenJob(self.host, self._write, self._screen, self._on_change, drives=self._drives)
        self._open_jobs.append(open_job)
        self._shown_index = len(self._open_jobs) - 1
        return open_job

    def _on_change(self, job_session: Session) -> None:
        """Print a new question, and the end of a Job's work, or a notice if another Job is shown."""
        open_job = next((candidate for candidate in self._open_jobs if candidate.session is job_session), None)
        if open_job is None:
            return
        was_busy, open_job.was_busy = open_job.was_busy, job_session.is_busy
        is_shown = open_job is self.shown_job
        if job_session.is_reading or not is_shown:
            open_job.lines.hold()
        else:
            open_job.lines.show()
        asking = job_session.asking if is_shown and job_session.is_driven else None
        if asking is not None and open_job.shown_question_id != asking.id:
            self._print_prompt()
        if not was_busy or job_session.is_busy:
            return
        number = self._open_jobs.index(open_job) + 1
        status = f"Job {number}, {open_job.name}: {STATES[job_session.state]}"
        if self._is_leaving:
            self.write_line(status)
        elif is_shown:
            self._print_prompt()
        else:
            self.write_line(f"{status}; /job {number} shows it")

    def _print_prompt(self) -> None:
        session, shown_job = self.shown_job.session, self.shown_job
        asking = session.open_question
        if asking is None:
            if session.resume_from is not None:
                self.write_line(f"> {hint_of(session, stop_key=_STOPS)}")
            elif session.expert_key is None and session.job_id is None:
                self._choose("")
            elif session.unsettled and self._settling_index is None:
                self.write_line(f"{count(len(session.unsettled), 'call')} without a result; Enter asks how they ended")
            else:
                self.write_line(f"> {hint_of(session, stop_key=_STOPS)}")
            return
        if shown_job.shown_question_id != asking.id:
            self._discard()
            shown_job.shown_question_id = asking.id
            self.write_line(self._question_text(asking))
        self.write_line(f"> {question_hint(asking, covers=False, is_whole=shown_job.is_whole)}")

    def _question_text(self, question: OpenQuestion) -> str:
        shown_job = self.shown_job
        if not question.call_digest:
            shown_job.is_whole = True
            return question_text(question)
        where = f"perstack start --job {place_of(question.id)[0]}, without --plain"
        page = replace(page_of(question, self.host.workspace, shown_job.session.spent), where=where)
        text, shown_job.is_whole = page.fitted(TERMINAL)
        return text

    # --- input ----------------------------------------------------------------------------------------------------

    async def on_line(self, line: str) -> None:
        """Handle a typed line, given without its line end."""
        if self.has_left.is_set():
            return
        if line.endswith("\\"):
            self._draft.append(line[:-1])
            return
        text = "\n".join([*self._draft, line])
        self._draft = []
        if self._asks_to_leave:
            await self._leave_or_stay(text)
        elif text.startswith("/") and not text.startswith("//"):
            await self._run_command(text[1:])
        else:
            self._handle_text(text[1:] if text.startswith("//") else text)

    async def on_end(self) -> None:
        """Handle the end of input: ask whether to leave; the second time leave."""
        self._draft = []
        await (self.leave() if self._asks_to_leave else self._do_quit())

    def on_cut_line(self) -> None:
        """Handle a line that the terminal cut off: report it instead of sending an incomplete text."""
        self._draft = []
        self.write_line(
            "that line was too long: the terminal cut it off, so it was not sent; end lines with \\ to continue"
        )

    def interrupt(self) -> bool:
        """Handle Ctrl-C. Return False at the second one, while the Job is still stopping."""
        self._draft = []
        self._asks_to_leave = False
        if self._settling_index is not None:
            self._settling_index = None
            self._print_prompt()
            return True
        session = self.shown_job.session
        if session.resume_from is not None and not session.is_busy:
            self.write_line("left the branch")
            session.interrupt()
            self._print_prompt()
            return True
        if not session.is_busy:
            self.write_line("no Job is running; /quit leaves")
            return True
        if session.is_stopping:
            return False
        self.write_line("interrupting" if session.is_driven else "no longer watched")
        session.interrupt()
        return True

    async def leave(self) -> None:
        """Interrupt running Jobs, and leave when that is recorded."""
        self._is_leaving = True
        for session in self.sessions:
            session.interrupt()
        await asyncio.gather(*(session.wait_until_idle() for session in self.sessions))
        self.has_left.set()

    def _handle_text(self, text: str) -> None:
        """Handle a line without a command as the state of the shown Job requires: answer, send, choose or resume."""
        session = self.shown_job.session
        if self._settling_index is not None:
            self._settle(self._settling_index, text.strip())
        elif session.expert_key is None and session.job_id is None:
            self._choose(text.strip())
        elif session.is_busy and session.asking is None:
            if text.strip() and session.accepts_texts:
                session.tell(text)
                return
            if text.strip():
                self.write_line(f"not sent: {hint_of(session, stop_key=_STOPS)}")
            self._do_status()
        elif (session.is_unfollowed or session.is_unread) and text.strip() and session.resume_from is None:
            self.write_line(f"not sent: {hint_of(session, stop_key=_STOPS)}")
        elif (asking := session.open_question) is not None:
            self._answer(asking, text)
        elif not text.strip() and session.resume_from is not None:
            self._print_prompt()
        elif not text.strip():
            self._do_resume()
        else:
            session.send(text)

    def _choose(self, typed: str) -> None:
        """Choose an Expert by its number in the last list, its name, or words of its description."""
        experts = self.host.experts.all()
        if typed in experts:
            self._use_expert(typed)
            return
        if typed.isascii() and typed.isdecimal() and len(typed) < 6 and 0 < int(typed) <= len(self._experts):
            self._use_expert(self._experts[int(typed) - 1].key)
            return
        matches = filter_experts(experts, typed)
        if len(matches) == 1 and typed:
            self._use_expert(matches[0].key)
            return
        if not matches:
            self.write_line("no Expert matches these words" if typed else "perstack.toml has no Expert")
            return
        self._experts = matches
        self.write_line("Choose an Expert by its number or name:")
        for number, expert in enumerate(matches, 1):
            self.write_line(f"{number}. {one_line(f'{expert.key}: {expert.description}').rstrip(': ')}")

    def _use_expert(self, key: str, *, prints_prompt: bool = True) -> None:
        self.shown_job.session.expert_key = key
        if prints_prompt:
            self._print_prompt()

    def _answer(self, question: OpenQuestion, text: str) -> None:
        text = text.strip()
        if not text:
            self._print_prompt()
        elif question.call_digest:
            is_no = text in ("n", "N")
            answer = DENIES if is_no else answer_of_key(question, text) or text
            word = yes_or_no(answer)
            if self.shown_job.is_whole or (word is not None and not word.is_yes):
                self.shown_job.session.send(answer)
            else:
                self.write_line(f"> {question_hint(question, is_whole=False)}")
        else:
            self.shown_job.session.send(select_option(accepted_answers(question), text))

    def _settle(self, number: int, key: str) -> None:
        """Settle the call with that index by a key, then ask about the next one, or resume after the last."""
        session = self.shown_job.session
        if key and key not in SETTLEMENTS:
            self._ask_settlement(number)
            return
        if key:
            session.settlements[session.unsettled[number].key] = SETTLEMENTS[key][0]
        if number + 1 < len(session.unsettled):
            self._ask_settlement(number + 1)
            return
        self._settling_index = None
        session.resume()

    def _ask_settlement(self, number: int) -> None:
        self._settling_index = number
        unsettled_call = self.shown_job.session.unsettled[number]
        keys = ", ".join(f"{key} {text}" for key, (_, text) in SETTLEMENTS.items())
        self.write_line(
            f"{one_line(f'{unsettled_call.tool_name} of {unsettled_call.expert_key}')}: its process ended"
            " while it was at work"
        )
        self.write_line("\n".join(f"  {line}" for line in unsettled_call.args.split("\n")))
        self.write_line(f"> {keys}; Enter: the model sees that it was interrupted")

    async def _leave_or_stay(self, text: str) -> None:
        self._asks_to_leave = False
        answer = yes_or_no(text)
        if text.strip().lower() in ("i", "interrupt") or (answer is not None and answer.is_yes):
            await self.leave()
        else:
            self.write_line("stays")

    # --- commands -------------------------------------------------------------------------------------------------

    async def _run_command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        command = NAMES.get(name)
        if command is None:
            self.write_line(
                f"there is no /{one_line(name)}; /help lists the commands; begin a text with // to send a slash"
            )
            return
        try:
            await self._perform(name, argument.strip())
        except PerstackError as error:
            self.write_line(f"error: {error.text_for(plain_phrase)}")

    async def _perform(self, name: str, argument: str) -> None:  # noqa: C901 - one case for each command
        session = self.shown_job.session
        match name:
            case "help":
                self.write_line("\n".join(_help_lines()))
            case "new":
                self._do_new()
            case "jobs":
                self._do_jobs()
            case "job":
                self._do_job(argument)
            case "history":
                self.write_line("\n".join(await self._lists.history(argument)))
            case "inbox":
                self.write_line("\n".join(await self._lists.inbox()))
            case "open":
                await self._do_open(argument)
            case "checkpoints":
                self.write_line("\n".join(await self._lists.checkpoints(session.job_id)))
            case "branch" | "again":
                self._do_branch(argument, answers_again=name == "again")
            case "model":
                await self._do_model(argument)
            case "resume":
                self._do_resume(argument)
            case "status":
                self._do_status()
            case "more":
                self.write_line(self.shown_job.printer.cut or "nothing was cut")
            case "agree":
                await self._do_agree()
            case _:
                await self._do_quit()

    def _do_new(self) -> None:
        if self.shown_job.name != "new":
            self._add_job()
        self._choose("")

    def _do_jobs(self) -> None:
        for number, open_job in enumerate(self._open_jobs, 1):
            marker = ", shown" if open_job is self.shown_job else ""
            self.write_line(f"{number}. {one_line(open_job.name)}: {STATES[open_job.session.state]}{marker}")

    def _do_job(self, number: str) -> None:
        if not (
            number.isascii() and number.isdecimal() and len(number) < 6 and 0 < int(number) <= len(self._open_jobs)
        ):
            self.write_line("which? give a number from /jobs")
            return
        self._show(int(number) - 1)

    def _show(self, index: int) -> None:
        self.shown_job.lines.hold()
        self._shown_index, self._settling_index = index, None
        session = self.shown_job.session
        self.shown_job.shown_question_id = None
        self.write_line(f"Job {index + 1}, {one_line(self.shown_job.name)}: {STATES[session.state]}")
        if not session.is_reading:
            self.shown_job.lines.show()
        if not session.is_busy:
            self._print_prompt()

    async def _do_open(self, argument: str) -> None:
        job_id = self._lists.job_id_at(argument) or await self.host.jobs.complete_id(argument or None)
        if job_id is None:
            self.write_line("which? give a number from /history or /inbox, or a Job's id")
            return
        await self.host.job(job_id)
        self._open(job_id)

    def _open(self, job_id: str) -> None:
        for index, open_job in enumerate(self._open_jobs):
            if open_job.session.job_id == job_id:
                self._show(index)
                return
        open_job = self.shown_job if self._open_jobs and self.shown_job.name == "new" else self._add_job()
        self.write_line(f"Job {one_line(job_id)}")
        open_job.session.watch(job_id)

    def _do_branch(self, argument: str, *, answers_again: bool) -> None:
        session = self.shown_job.session
        checkpoint_ref = self._lists.checkpoint_at(argument, session.job_id)
        if checkpoint_ref is None or session.is_busy:
            self.write_line("the Job is at work" if session.is_busy else "where? give a number from /checkpoints")
            return
        again = open_question_at(checkpoint_ref) if answers_again and checkpoint_ref.asks else None
        if answers_again and (again is None or is_delegate(checkpoint_ref.entry.log)):
            self.write_line("there was no question to you there: choose a checkpoint where the Coordinator asks")
            return
        self.shown_job.shown_question_id = None
        session.branch(checkpoint_ref.id, again)
        if again is not None:
            self.write_line(f"> {hint_of(session, stop_key=_STOPS)}")
        self._print_prompt()

    async def _do_model(self, name: str) -> None:
        session = self.shown_job.session
        if session.expert_key is None:
            self.write_line(NO_EXPERT)
        elif not name:
            self.write_line("\n".join(await self._lists.models(session)))
        else:
            session.use_model(name)
            self.write_line((await session.check_model(name))[0])

    def _do_resume(self, argument: str = "") -> None:
        session, resumption = self.shown_job.session, self.shown_job.session.resumption
        if session.is_unfollowed or session.is_unread:
            session.follow()
            return
        if resumption is None or resumption.needs is not None:
            if argument and resumption is not None:
                session.send(argument)
            else:
                self._print_prompt()
        elif session.unsettled:
            self._ask_settlement(0)
        else:
            session.resume()

    def _do_status(self) -> None:
        session = self.shown_job.session
        self.write_line("\n".join(status_lines(session, self.host.clock.now())))

    async def _do_agree(self) -> None:
        change = None if self.live is None else self.live.open_change
        if self.live is None or change is None:
            self.write_line(no_change_message(self.live))
        elif not (page := fitted_change(change, TERMINAL)).is_whole:
            self.write_line(page.text)
        elif await asyncio.to_thread(self.live.agree, change.digest):
            self.host.use(self.live.loaded.project)
            self.write_line("the changed definition is now used")

    async def _do_quit(self) -> None:
        jobs = sum(session.is_driven for session in self.sessions)
        if not jobs:
            await self.leave()
            return
        self._asks_to_leave = True
        self.write_line(f"{count(jobs, 'Job')} {'is' if jobs == 1 else 'are'} at work.")
        self.write_line("> w keep waiting, i interrupt (recorded) and leave")


def _help_lines() -> Sequence[str]:
    return [f"/{' '.join(filter(None, (item.name, item.arguments)))}: {item.text}" for item in COMMANDS] + [*HINTS]
