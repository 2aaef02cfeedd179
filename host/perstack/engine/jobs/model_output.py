"""Results as objects of a pydantic model of the caller: `run(…, output=Model)`.

A new Run gets the JSON schema of the model in place of the Expert's `output`; its log has the schema, not the model.
While the Job is driven here, the model also parses each result that fits the schema. If a validator refuses it, the
result is handled like one that does not fit the schema. A resume needs a model with an equal schema; without one only
the schema is checked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Generic

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError
from typing_extensions import override

from perstack.core.base.records import JsonObject, canonical_json
from perstack.core.base.validation_errors import describe_errors
from perstack.core.jobs.summary import JobSummary, OutputT, ParsedJob
from perstack.core.schemas.result_schemas import schema_fault
from perstack.engine.context.host_setup import HostSetup
from perstack.errors import UsageError

if TYPE_CHECKING:
    from perstack.core.runs.state import Run


class ResultReader:
    """Reader of a Job's result for a caller without a model. Leaves setups and summaries unchanged."""

    def with_schema_and_check(self, setup: HostSetup) -> HostSetup:
        """Return the setup with the model's schema and check, for a Run that begins."""
        return setup

    def with_check(self, setup: HostSetup) -> HostSetup:
        """Return the setup with the model's check, for a Run that is resumed and has its schema."""
        return setup

    def check_recorded(self, run: Run) -> None:
        """Raise UsageError if a Run to resume was begun with another schema than the model's, or with none."""

    def read(self, summary: JobSummary) -> JobSummary:
        """Return the summary; with a model a ParsedJob, whose `output` is None without a result."""
        return summary


def result_reader(model: type[BaseModel] | None) -> ResultReader:
    """Return the reader for a caller's `output`. Raises UsageError for a model that cannot be a result's schema."""
    return ResultReader() if model is None else ModelOutput(model)


class ModelOutput(ResultReader, Generic[OutputT]):
    """Reader that parses the result of one Job by a model."""

    def __init__(self, model: type[OutputT]) -> None:
        """Compute the model's schema. Raises UsageError for a model that cannot be the schema of a result."""
        self._model = model
        self._schema = _schema_of(model)
        self._parsed: tuple[JsonObject, OutputT] | None = None

    @override
    def with_schema_and_check(self, setup: HostSetup) -> HostSetup:
        return self.with_check(replace(setup, overrides=replace(setup.overrides, output=self._schema)))

    @override
    def with_check(self, setup: HostSetup) -> HostSetup:
        return replace(setup, check_result=self._validation_problem)

    @override
    def check_recorded(self, run: Run) -> None:
        from perstack.core.runs.state import schema_of_run

        recorded_schema = schema_of_run(run.start)
        if recorded_schema == self._schema:
            return
        how_begun = "was begun without a schema" if recorded_schema is None else "was begun with another JSON schema"
        remedy = "" if recorded_schema is None else ", or pass the model that it was begun with"
        job_id, name = run.start.job_id, self._model.__name__
        raise UsageError(f"output: Job {job_id} {how_begun}, not with that of {name}: leave the model out{remedy}")

    @override
    def read(self, summary: JobSummary) -> ParsedJob[OutputT]:
        if summary.result is None:
            return ParsedJob[OutputT].of(summary, None)
        if self._parsed is None or self._parsed[0] != summary.result:  # another process has checked it
            self._parsed = summary.result, self._model.model_validate_json(canonical_json(summary.result))
        return ParsedJob[OutputT].of(summary, self._parsed[1])

    def _validation_problem(self, value: JsonObject) -> str | None:
        try:
            self._parsed = value, self._model.model_validate_json(canonical_json(value))
        except ValidationError as error:
            return f"it does not fit: {describe_errors(error.errors(include_url=False, include_input=False), value)}"
        except Exception as error:  # noqa: BLE001 - a validator may raise anything; the Run ends with its message
            return f"it does not fit: {type(error).__name__}: {error}"
        return None


def _schema_of(model: object) -> JsonObject:
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise UsageError(f"output must be a class that inherits from pydantic's BaseModel, not {model!r}")
    try:
        schema: JsonObject = model.model_json_schema()
    except PydanticUserError as error:
        cause = str(error).splitlines()[0]
        raise UsageError(
            f"output: {model.__name__} has no JSON schema: {cause}; use types that pydantic reads from JSON"
        ) from error
    kind = schema.get("type", "object")
    if kind != "object":
        raise UsageError(f"output: {model.__name__} is not an object but {kind}: make it a field of a model")
    fault = schema_fault(schema)
    if fault is not None:
        raise UsageError(f"output: the JSON schema of {model.__name__} {fault}")
    return schema
