# mypy: disable-error-code="import-untyped"
# pyright: basic
import json

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

import perstack

settings.configure(ROOT_URLCONF=__name__, SECRET_KEY="for this example alone", ALLOWED_HOSTS=["*"])
django.setup()


def shown(job: perstack.JobSummary) -> JsonResponse:
    asks = None if job.asking is None else {"question": job.asking.id, "text": job.asking.shown}
    return JsonResponse({"id": job.id, "status": job.status, "text": job.text, "asks": asks})


async def start(request: HttpRequest) -> JsonResponse:
    given: dict[str, str] = json.loads(request.body)
    async with perstack.Host.open() as host:
        return shown(await host.run("guide", given["query"]))


async def answer(request: HttpRequest) -> JsonResponse:
    given: dict[str, str] = json.loads(request.body)
    try:
        async with perstack.Host.open() as host:
            return shown(await host.answer(given["text"], question=given["question"]))
    except perstack.PerstackError as error:
        status = 409 if isinstance(error, perstack.Conflict) else 422
        return JsonResponse({"detail": str(error)}, status=status)


urlpatterns = [path("jobs", start), path("answers", answer)]
application = get_asgi_application()
