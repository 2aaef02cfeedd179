"""Tools of a request as a wire format has them: names, schemas and the arguments of calls, to the model and back.

A codec writes its list of tools, and the calls in the history, with the `WireTools` of the request, and gives them the
reply before it leaves the provider. So everything outside the codec sees the tools' own names. The tools of a Run are
adapted once and kept in the memo of its requests.

Change together: everything that a message's encoding uses from here with `WireTools.key`, which belongs in the key that
the codec gives to `message_encoder`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from perstack.core.base.records import JsonObject
from perstack.core.definitions.skills import ToolSpec, legal_tool_name
from perstack.core.messages.adaptations import Adaptations, names_in
from perstack.core.messages.messages import ReplyPart, ToolCallPart
from perstack.dataclass import dataclass
from perstack.http_providers.argument_names import ArgumentNames
from perstack.http_providers.messages import arguments_of
from perstack.http_providers.schema_document import SchemaDocument
from perstack.http_providers.schema_rules import SchemaRules
from perstack.http_providers.tool_schemas import plain_schema, wire_schema
from perstack.ports.provider import Generation, GenerationRequest


@dataclass(frozen=True, slots=True)
class WireTool:
    """One tool in a wire format."""

    name: str
    description: str
    schema: JsonObject  # empty if the format leaves out the schema of a tool without arguments
    arguments: ArgumentNames

    @property
    def label(self) -> JsonObject:
        """The tool's name, and its description if it has one."""
        return {"name": self.name, **({"description": self.description} if self.description else {})}


class WireTools:
    """The tools of a request in one wire format, in their order."""

    def __init__(self, specs: Iterable[ToolSpec], rules: SchemaRules, adaptations: Adaptations = ()) -> None:
        """Adapt the tools. `adaptations` names the tools that are sent in their plainest form."""
        plain = names_in(adaptations, "tool", "plain")
        self._rule = rules.tool_names
        self._by_name: dict[str, WireTool] = {}
        self._own_names: dict[str, str] = {}
        specs = tuple(specs)
        taken = {spec.name for spec in specs if self._rule.accepts(spec.name)}
        for spec in specs:
            name = spec.name if spec.name in taken else self._rule.nearest(spec.name, taken, "tool")
            taken.add(name)
            self._by_name[spec.name] = plain_tool(spec, name) if spec.name in plain else _tool(spec, name, rules)
            self._own_names[name] = spec.name
        self.listed = tuple(self._by_name.values())
        self.key: Hashable = tuple(
            (own, tool.name, tool.arguments.changes)
            for own, tool in self._by_name.items()
            if own != tool.name or tool.arguments.changes
        )
        """Everything that the encoding of calls depends on; empty if the format takes all names as they are."""

    def name(self, tool_name: str) -> str:
        """Return the name under which calls and results of a tool are sent, even if the tool is not offered."""
        tool = self._by_name.get(tool_name)
        if tool is not None:
            return tool.name
        legal = legal_tool_name(tool_name)
        return legal if self._rule.accepts(legal) else self._rule.nearest(legal, (), "tool")

    def arguments(self, part: ToolCallPart) -> JsonObject:
        """Return the arguments of a call as the model wrote them."""
        tool = self._by_name.get(part.tool_name)
        args = arguments_of(part)
        return args if tool is None or part.raw_args is not None else tool.arguments.to_wire(args)

    def restored(self, generation: Generation) -> Generation:
        """Return the generation with the tools' own names, and their arguments', in all calls."""
        if not self.key:
            return generation
        contents = tuple(self._restored_part(part) for part in generation.reply.contents)
        return replace(generation, reply=generation.reply.model_copy(update={"contents": contents}))

    def _restored_part(self, part: ReplyPart) -> ReplyPart:
        if not isinstance(part, ToolCallPart):
            return part
        own_name = self._own_names.get(part.tool_name)
        if own_name is None:
            return part
        args = self._by_name[own_name].arguments.from_wire(part.args)
        return part.model_copy(update={"tool_name": own_name, "args": args})


def wire_tools(request: GenerationRequest, rules: SchemaRules) -> WireTools:
    """Return the tools of a request, adapted when a Run sends them for the first time."""
    key = ("tools", rules.name)
    known = request.memo.get(key)
    source = (request.tools, request.adaptations)
    if isinstance(known, _Adapted) and known.source == source:
        return known.tools
    tools = WireTools(request.tools, rules, request.adaptations)
    request.memo[key] = _Adapted(source, tools)
    return tools


@dataclass(frozen=True, slots=True)
class _Adapted:
    source: object
    tools: WireTools


def _tool(spec: ToolSpec, name: str, rules: SchemaRules) -> WireTool:
    document = SchemaDocument(spec.input_schema)
    names = ArgumentNames(document, rules.argument_names)
    schema, sentences = wire_schema(document, names, rules)
    return WireTool(name, _sentences(*sentences, spec.description), schema, names)


def plain_tool(spec: ToolSpec, name: str) -> WireTool:
    """Return a tool in its plainest form: any object is accepted, and the description has the schema as text."""
    document = SchemaDocument(spec.input_schema)
    schema, words = plain_schema(document)
    return WireTool(name, _sentences(spec.description, words), schema, ArgumentNames(document, None))


def _sentences(*texts: str) -> str:
    return "\n".join(filter(None, texts))
