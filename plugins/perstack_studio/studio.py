"""Context that all pages share: the served project, the person's rights, and the templates."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse

from perstack.dataclass import dataclass
from perstack.doors.served_project import ServedProject
from perstack.errors import UsageError
from perstack.host import Host
from perstack.system.user import this_user
from perstack_studio.access import StudioAccess
from perstack_studio.checks import Checks
from perstack_studio.job_states import JobStates
from perstack_studio.live import Feeds
from perstack_studio.question_count import OpenQuestionCount
from perstack_studio.search_index import SearchIndex
from perstack_studio.words import cleaned, filters

if TYPE_CHECKING:
    from jinja2 import Environment

    from perstack.core.base.ids import By

_TEMPLATES = Path(__file__).with_name("templates")
MAX_BODY_BYTES = 4 << 20  # maximum bytes of a posted form
_MAX_FIELDS = 100


class _PlaceConvertor(IntegerConvertor):
    """`{name:place}` in the path of a route: a place or step, of which no log has more than nine digits."""

    regex = "[0-9]{1,9}"


register_url_convertor("place", _PlaceConvertor())


@dataclass(frozen=True, slots=True)
class Studio:
    """A project's studio, in the state of the application."""

    served_project: ServedProject
    access: StudioAccess
    templates: Environment
    feeds: Feeds
    states: JobStates
    open_questions: OpenQuestionCount
    search_index: SearchIndex
    is_read_only: bool = False
    checks: Checks = field(default_factory=Checks)

    @property
    def host(self) -> Host:
        return self.served_project.host

    @property
    def by(self) -> By:
        """The person at this machine, as recorded with a decision."""
        return this_user("studio")

    def render(self, template: str, **values: object) -> str:
        """Return a rendered template: a page or a part of one."""
        return self.templates.get_template(template).render(**values)

    def check_may_change(self) -> None:
        """Raise UsageError if nothing may be changed here."""
        if self.is_read_only:
            raise UsageError("this studio was started with --read-only: nothing can be changed here")


def studio_of(request: Request) -> Studio:
    studio: object = request.app.state.studio
    assert isinstance(studio, Studio)  # noqa: S101 - `app.build_app` sets it
    return studio


async def render_page(request: Request, template: str, *, status: int = 200, **values: object) -> HTMLResponse:
    """Return a page in the common frame: navigation, the number of open questions, the form's token."""
    studio = studio_of(request)
    frame: Mapping[str, object] = {
        "path": request.url.path,
        "workspace": studio.host.workspace.name,
        "open_questions": await studio.open_questions.value(),
        "is_read_only": studio.is_read_only,
        "token": studio.access.form_token(request.headers),
        "now": studio.host.clock.now(),
    }
    # In a thread: rendering hostile Markdown takes seconds, during which the event loop must serve others.
    return HTMLResponse(await asyncio.to_thread(studio.render, template, **frame, **values), status)


def see_other(path: str) -> RedirectResponse:
    """Return the response to a form that was carried out: a redirection to the next page."""
    return RedirectResponse(path, 303)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises UsageError without the page's token, and if nothing may be changed."""
    import hmac

    studio = studio_of(request)
    studio.check_may_change()
    studio.open_questions.invalidate()
    fields = await _read_fields(request)
    if not hmac.compare_digest(fields.pop("token", "").encode(), studio.access.form_token(request.headers).encode()):
        raise UsageError("this form is of another session: load its page again")
    return fields


async def _read_fields(request: Request) -> dict[str, str]:
    """Return the posted fields. Raises UsageError for more bytes or fields than a form may have."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise UsageError(f"a form has at most {MAX_BODY_BYTES >> 20} MiB")
    try:
        return dict(parse_qsl(data.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise UsageError(f"a form has at most {_MAX_FIELDS} fields") from error


def make_templates() -> Environment:
    """Return the templates, which escape all values except the markup made by filters of `words`."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=cleaned,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    templates.filters.update(filters())
    return templates
