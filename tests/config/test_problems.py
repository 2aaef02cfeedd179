"""Every rule of a definition file: what breaks it is told with file, line and key."""

from __future__ import annotations

import pytest

from perstack.definition_files import load_project
from perstack.errors import DefinitionError

MAX_DESCRIPTION = 2_048
MAX_INSTRUCTION = 20_480

EXPERT = '[experts.a]\ninstruction = "x"\n'
SKILL = EXPERT + "[experts.a.skills.s]\n"
STDIO = SKILL + 'type = "mcpStdioSkill"\ncommand = "x"\n'
SSE = SKILL + 'type = "mcpSseSkill"\n'
LOGIN = f'{SSE}endpoint = "https://a.example/mcp"\n[experts.a.skills.s.oauth]\n'
ASK = SKILL + 'type = "interactiveSkill"\n[experts.a.skills.s.tools.ask]\n'

ERRORS = {
    "a misspelt key": (f'{EXPERT}descripton = "x"', 3, "experts.a.descripton", "did you mean `description`?"),
    # a wrong type
    "model is not a text": ("model = 3", 1, "model", 'must be text in "quotes" or a list of texts, not a number'),
    "model is blank": ('model = " "', 1, "model", "must not be empty"),
    "steps are text": ('# many\nmaxSteps = "50"', 2, "maxSteps", "must be a whole number, not text"),
    "steps are true": ("maxSteps = true", 1, "maxSteps", "must be a whole number, not true or false"),
    "steps are a fraction": ("maxSteps = 1.5", 1, "maxSteps", "must be a whole number, not a fraction"),
    "no steps at all": ("maxSteps = -1", 1, "maxSteps", "must be at least 0, not -1"),
    "retries below none": ("maxRetries = -1", 1, "maxRetries", "must be at least 0, not -1"),
    "no time at all": ("timeout = 0", 1, "timeout", "must be at least 1, not 0"),
    "a date for a text": ("storage = 2026-01-01", 1, "storage", "not a date or time"),
    "one text for a list": ('envPath = ".env"', 1, "envPath", "must be a list of texts, not text: write it in [brack"),
    "a number in a list": ('envPath = [\n".env",\n3]', 3, "envPath[1]", 'must be text in "quotes", not a number'),
    "an unknown budget word": ('reasoningBudget = "hihg"', 1, "reasoningBudget", "did you mean `high`?"),
    "a budget below none": ("reasoningBudget = -1", 1, "reasoningBudget", "must be at least 0, not -1"),
    "a runtime that is a number": ("runtime = 3", 1, "runtime", 'must be text in "quotes", not a number'),
    "a NUL in a sandbox": ('[sandbox]\nwritable = ["a\\u0000b"]', 2, "sandbox.writable[0]", "must not contain a NUL"),
    "a NUL in the workspace": ('workspace = "a\\u0000b"', 1, "workspace", "must not contain a NUL character"),
    "a NUL in the storage": ('storage = "file:a\\u0000b"', 1, "storage", "must not contain a NUL character"),
    "a NUL in envPath": ('envPath = ["a\\u0000"]', 1, "envPath[0]", "must not contain a NUL character"),
    "a NUL in an anchor": ('[audit]\nanchor = ["a\\u0000"]', 2, "audit.anchor[0]", "must not contain a NUL"),
    "a user in a sandbox": ('[sandbox]\nreadable = ["~you/x"]', 2, "sandbox.readable[0]", "another user's home folder"),
    "a pattern in a sandbox": ('[sandbox]\nreadable = ["~/*"]', 2, "sandbox.readable[0]", "must not be a pattern"),
    "no name in a sandbox": ('[sandbox]\nwritable = [" "]', 2, "sandbox.writable[0]", "must name a file or folder"),
    "provider as text": ('provider = "openai"', 1, "provider", "must be a table, not text"),
    "provider without a name": ("[provider]\nsetting = {}", 1, "provider.providerName", "is missing"),
    "a setting that is not a table": (
        '[provider]\nproviderName = "x"\nsetting = 3',
        3,
        "provider.setting",
        "must be a table, not a number",
    ),
    "a date deep in a setting": (
        '[provider]\nproviderName = "x"\n[provider.setting]\na = [{ b = 2026-01-01 }]',
        4,
        "provider.setting.a[0].b",
        "must not hold a date or time",
    ),
    "experts as a list": ("[[experts]]", 1, "experts", "must be a table, not a list"),
    "an Expert as text": ('[experts]\na = "x"', 2, "experts.a", "must be a table, not text: write [experts.a]"),
    # Experts
    "no instruction": ('# a\n[experts.a]\ndescription = "x"', 2, "experts.a.instruction", "is missing"),
    "a blank instruction": ('[experts.a]\ninstruction = """\n  """', 2, "experts.a.instruction", "must not be empty"),
    "an endless instruction": (
        f'[experts.a]\ninstruction = "{"x" * (MAX_INSTRUCTION + 1)}"',
        2,
        "experts.a.instruction",
        "has 20,481 characters: shorten it to 20,480",
    ),
    "an endless description": (
        f'{EXPERT}description = "{"x" * (MAX_DESCRIPTION + 1)}"',
        3,
        "experts.a.description",
        "has 2,049 characters: shorten it to 2,048",
    ),
    "a key with a blank": ('[experts."a b"]\ninstruction = "x"', 1, 'experts."a b"', "is not a valid Expert key"),
    "a key with an upper-case scope": (
        '[experts."@Org/a"]\ninstruction = "x"',
        1,
        'experts."@Org/a"',
        "is not a valid",
    ),
    "a key that is a path": ('[experts."../a"]\ninstruction = "x"', 1, 'experts."../a"', "is not a valid Expert key"),
    "a key with a version": (
        '[experts."a@1.2.0"]\ninstruction = "x"',
        1,
        'experts."a@1.2.0"',
        'write version = "1.2.0"',
    ),
    "an endless key": (f'[experts.{"a" * 256}]\ninstruction = "x"', 1, f"experts.{'a' * 256}", "at most 255"),
    "half a version": (f'{EXPERT}version = "1.0"', 3, "experts.a.version", "must be a semantic version"),
    "a version with a v": (f'{EXPERT}version = "v1.0.0"', 3, "experts.a.version", 'not "v1.0.0"'),
    "a runtime to come": (
        f'{EXPERT}minRuntimeVersion = "v1.1"',
        3,
        "experts.a.minRuntimeVersion",
        "needs runtime v1.1, but this one is v1.0",
    ),
    "no runtime version": (f'{EXPERT}minRuntimeVersion = "new"', 3, "experts.a.minRuntimeVersion", "must be a version"),
    "a delegate that is not there": (
        f'{EXPERT}delegates = [\n"wroker"]\n[experts.worker]\ninstruction = "x"',
        4,
        "experts.a.delegates[0]",
        "there is no Expert `wroker`; did you mean `worker`?",
    ),
    "a scoped delegate that is not there": (
        f'{EXPERT}delegates = ["@org/b"]',
        3,
        "experts.a.delegates[0]",
        "there is no Expert `@org/b`; bring a published Expert over with `include`: docs/from-perstack.md",
    ),
    "a delegate of another version": (
        f'{EXPERT}delegates = ["@org/b@2.0.0"]\n[experts."@org/b"]\ninstruction = "x"',
        3,
        "experts.a.delegates[0]",
        "`@org/b` is defined with version 1.0.0, not 2.0.0",
    ),
    "an Expert's steps": (f"{EXPERT}maxSteps = -1", 3, "experts.a.maxSteps", "must be at least 0"),
    "an Expert's provider": (f"{EXPERT}provider = {{}}", 3, "experts.a.provider.providerName", "is missing"),
    # skills
    "a skill as text": (f'{EXPERT}skills.s = "x"', 3, "experts.a.skills.s", "must be a table, not text"),
    "a skill without a type": (f'{SKILL}command = "x"', 3, "experts.a.skills.s.type", "is missing: one of mcpStdio"),
    "a type that is not a text": (f"{SKILL}type = 3", 4, "experts.a.skills.s.type", "must be one of mcpStdioSkill"),
    "an unknown type": (
        f'{SKILL}type = "mcpStdio"',
        4,
        "experts.a.skills.s.type",
        "must be one of mcpStdioSkill, mcpSseSkill, interactiveSkill, pluginSkill, agentSkill; did you mean"
        " `mcpStdioSkill`?",
    ),
    "nothing to start": (f'{SKILL}type = "mcpStdioSkill"', 3, "experts.a.skills.s.command", "is missing"),
    "a flag as text": (f'{STDIO}lazyInit = "yes"', 6, "experts.a.skills.s.lazyInit", "must be true or false, not text"),
    "a domain as address": (
        f'{STDIO}allowedDomains = ["https://a.example"]',
        6,
        "experts.a.skills.s.allowedDomains[0]",
        "is not a domain",
    ),
    "a look-alike domain": (
        f'{STDIO}allowedDomains = ["a.example", "*.xn--e1afmkfd.example"]',
        6,
        "experts.a.skills.s.allowedDomains[1]",
        "must not be punycode",
    ),
    "no endpoint": (SSE, 3, "experts.a.skills.s.endpoint", "is missing"),
    "an endpoint without HTTPS": (
        f'{SSE}endpoint = "http://example.com/mcp"',
        5,
        "experts.a.skills.s.endpoint",
        "must be a public HTTPS address",
    ),
    "an endpoint that is not an address": (
        f'{SSE}endpoint = "example.com"',
        5,
        "experts.a.skills.s.endpoint",
        "must be a",
    ),
    "an endpoint with a broken host": (
        f'{SSE}endpoint = "https://[::1"',
        5,
        "experts.a.skills.s.endpoint",
        "is not an add",
    ),
    "an endpoint of another scheme, local or not": (
        f'{SSE}allowLocalNetwork = true\nendpoint = "file:///etc/passwd"',
        6,
        "experts.a.skills.s.endpoint",
        "must be a public HTTPS address",
    ),
    "an unknown flow": (f'{LOGIN}flow = "implicit"', 7, "experts.a.skills.s.oauth.flow", "must be one of"),
    "a client that has no secret": (
        f'{LOGIN}flow = "clientCredentials"\nclientId = "c"',
        6,
        "experts.a.skills.s.oauth",
        "must have either `clientSecret` or `privateKey`",
    ),
    "a secret of nobody": (
        f'{LOGIN}clientSecret = "${{S}}"',
        6,
        "experts.a.skills.s.oauth.clientId",
        "is missing: the cl",
    ),
    "a key for a person's login": (
        f'{LOGIN}clientId = "c"\nprivateKey = "${{K}}"',
        8,
        "experts.a.skills.s.oauth.privateKey",
        'needs flow = "clientCredentials"',
    ),
    "a machine's token for a person's login": (
        f'{LOGIN}identityFile = "/token"',
        7,
        "experts.a.skills.s.oauth.identityFile",
        'needs flow = "identityAssertion"',
    ),
    "an identity provider that is not named": (
        f'{LOGIN}flow = "identityAssertion"\nclientId = "c"\nclientSecret = "${{S}}"\nidentityFile = "/token"',
        6,
        "experts.a.skills.s.oauth",
        "must have `clientSecret`, `identityFile`, `identityEndpoint`, `identityClientId` and `issuer`",
    ),
    "an identity provider for a person's login": (
        f'{LOGIN}identityEndpoint = "https://a.b/token"',
        6,
        "experts.a.skills.s.oauth",
        'has keys of an identity provider, which need flow = "identityAssertion"',
    ),
    "an identity provider that is no address": (
        f'{LOGIN}identityEndpoint = "a.b"',
        7,
        "experts.a.skills.s.oauth.identityEndpoint",
        "must be an address such as",
    ),
    "an issuer that is not an address": (
        f'{LOGIN}issuer = "a.b"',
        7,
        "experts.a.skills.s.oauth.issuer",
        "must be an address",
    ),
    "a login beside a token": (
        f'{SSE}endpoint = "https://a.example/mcp"\nheaders = {{ authorization = "x" }}\noauth = {{}}',
        7,
        "experts.a.skills.s.oauth",
        "cannot be beside an `Authorization`",
    ),
    "headers that are not text": (
        f'{SSE}endpoint = "https://a.example"\nheaders = {{ a = 1 }}',
        6,
        "experts.a.skills.s.headers.a",
        'must be text in "quotes", not a number',
    ),
    "no tools": (f'{SKILL}type = "interactiveSkill"', 3, "experts.a.skills.s.tools", "is missing"),
    "a tool without a schema": (ASK, 5, "experts.a.skills.s.tools.ask.inputJsonSchema", "is missing"),
    "a schema that is not JSON": (
        f'{ASK}inputJsonSchema = "{{type: object}}"',
        6,
        "experts.a.skills.s.tools.ask.inputJsonSchema",
        "is not JSON: Expecting property name",
    ),
    "a schema that is a list": (
        f'{ASK}inputJsonSchema = "[]"',
        6,
        "experts.a.skills.s.tools.ask.inputJsonSchema",
        'must be the JSON schema of an object: write {"type": "object"',
    ),
    "the schema of a text": (
        f'{ASK}inputJsonSchema = \'{{"type": "string"}}\'',
        6,
        "experts.a.skills.s.tools.ask.inputJsonSchema",
        'must be the schema of an object: write "type": "object", not "string"',
    ),
    "no plugin": (f'{SKILL}type = "pluginSkill"', 3, "experts.a.skills.s.plugin", "is missing"),
}


@pytest.mark.parametrize(("text", "line", "key", "words"), ERRORS.values(), ids=ERRORS)
def test_it_is_an_error_with_line_and_key(problems, text, line, key, words):
    found = problems(text)
    assert [(severity, at, named) for severity, at, named, _ in found] == [("error", line, key)]
    assert words in found[0][3]


WARNINGS = {
    "a key of a similar meaning": (f'{EXPERT}descriptiveText = "x"', 3, "experts.a.descriptiveText", "unknown key"),
    "a key in snake case": ("agents_md = true", 1, "agents_md", "did you mean `agentsMd`?"),
    "a key like no other": (
        f"{EXPERT}[experts.a.zzz]",
        3,
        "experts.a.zzz",
        "known here: `instruction`, `version`,",
    ),
    "envPath inside provider": (
        '[provider]\nproviderName = "x"\n\nenvPath = [".env"]',
        4,
        "provider.envPath",
        "`envPath` belongs at the top of the file, above the first [table]",
    ),
    "an instruction outside": ('instruction = "x"', 1, "instruction", "`instruction` belongs in [experts.NAME]"),
    "a key of another skill type": (
        f'{STDIO}endpoint = "x"',
        6,
        "experts.a.skills.s.endpoint",
        "`endpoint` belongs in a skill of type mcpSseSkill",
    ),
    "a misspelt key of a tool": (
        f'{ASK}inputJsonSchema = "{{}}"\ndescripion = "x"',
        7,
        "experts.a.skills.s.tools.ask.descripion",
        "did you mean `description`?",
    ),
    "docker": ('runtime = "docker"', 1, "runtime", "`docker` has no effect"),
    "a temperature": ("temperature = 0.3", 1, "temperature", "has no effect"),
    "a delegate named twice": (
        f'{EXPERT}delegates = ["b", "b@1.0.0"]\n[experts.b]\ninstruction = "x"',
        3,
        "experts.a.delegates[1]",
        "`b` is named twice",
    ),
    "an Expert that delegates to itself": (
        f'maxSteps = 0\nmaxDepth = 0\n{EXPERT}delegates = ["a"]',
        5,
        "experts.a.delegates[0]",
        "may delegate to itself without end",
    ),
}


@pytest.mark.parametrize(("text", "line", "key", "words"), WARNINGS.values(), ids=WARNINGS)
def test_it_is_a_warning_with_line_and_key(problems, text, line, key, words):
    found = problems(text)
    assert [(severity, at, named) for severity, at, named, _ in found] == [("warning", line, key)]
    assert words in found[0][3]


@pytest.mark.parametrize(
    "host", ["localhost", "a.localhost", "127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.1.1", "[::1]"]
)
def test_a_private_endpoint_must_be_allowed(problems, host):
    private = f'{SSE}endpoint = "https://{host}/mcp"\n'
    [(severity, line, key, words)] = problems(private)
    assert (severity, line, key) == ("error", 5, "experts.a.skills.s.endpoint")
    assert "set allowLocalNetwork = true" in words
    assert problems(private + "allowLocalNetwork = true") == []


def test_two_interactive_tools_of_one_name_are_an_error_that_names_both(problems, tmp_path):
    found = problems("""
        [experts.a]
        instruction = "x"
        [experts.a.skills.s]
        type = "interactiveSkill"
        tools.ask = { inputJsonSchema = "{}" }
        [experts.a.skills.t]
        type = "interactiveSkill"
        [experts.a.skills.t.tools.ask]
        inputJsonSchema = "{}"
    """)
    [(severity, line, key, words)] = found
    assert (severity, line, key) == ("error", 8, "experts.a.skills.t.tools.ask")
    assert f"at {tmp_path / 'perstack.toml'}:5" in words


def test_two_experts_may_each_have_an_interactive_tool_of_one_name(problems):
    one = ASK + 'inputJsonSchema = "{}"\n'
    assert problems(one + one.replace("experts.a", "experts.b")) == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('model = "x"\n[experts.a\n', 2, "at line 2, column"),
        ('model = "x"\nmodel = "y"\n', 2, "Cannot overwrite a value"),
        ('model = "x"\n\n[experts.a]\ninstruction = """', 4, "at end of document"),
    ],
)
def test_toml_that_does_not_parse_is_told_in_the_parsers_words(problems, text, line, words):
    [(severity, at, key, message)] = problems(text)
    assert (severity, at, key) == ("error", line, None)
    assert message.startswith("is not TOML: ")
    assert words in message


def test_text_that_is_not_utf_8_is_told_with_its_place(tmp_path):
    path = tmp_path / "perstack.toml"
    path.write_bytes(b'model = "\xff"')
    with pytest.raises(DefinitionError, match="is not UTF-8 at byte 9: save it as UTF-8"):
        load_project(path)


def test_all_problems_come_at_once_from_the_top_down_warnings_too(problems):
    found = problems("""
        temperature = 1
        maxSteps = "many"
        [experts.a]
        delegates = ["b"]
        bogus = 1
        [experts.c]
        instruction = "x"
        skills.s = 3
    """)
    assert [(severity, line, key) for severity, line, key, _ in found] == [
        ("warning", 1, "temperature"),
        ("error", 2, "maxSteps"),
        ("error", 3, "experts.a.instruction"),
        ("error", 4, "experts.a.delegates[0]"),
        ("warning", 5, "experts.a.bogus"),
        ("error", 8, "experts.c.skills.s"),
    ]


def test_every_wrong_item_and_entry_is_told_and_the_good_ones_are_still_looked_at(problems):
    found = problems(
        f"{STDIO}args = [\n1,\n'--verbose',\n2]\n[experts.a.skills.s.env]\nA = 1\nAPI_KEY = 'sk-ant-0123456789abcdef'\n"
    )
    assert [(severity, line, key.removeprefix("experts.a.skills.s.")) for severity, line, key, _ in found] == [
        ("error", 7, "args[0]"),
        ("error", 9, "args[2]"),
        ("error", 11, "env.A"),
        ("warning", 12, "env.API_KEY"),
    ]


def test_a_key_that_is_wrong_beside_a_schema_in_text_is_all_that_is_said(problems):
    found = problems(f"""{ASK}description = -1\ninputJsonSchema = '{{"type": "object"}}'""")
    assert [(severity, line, key) for severity, line, key, _ in found] == [
        ("error", 6, "experts.a.skills.s.tools.ask.description")
    ]


def test_names_of_fields_that_files_have_not_are_unknown_keys(problems):
    found = problems(
        f'path = "/x"\nbroken = {{}}\n{EXPERT}key = "b"\n[experts.a.skills.s]\nname = "t"\n{STDIO.removeprefix(SKILL)}'
    )
    assert [(severity, key) for severity, _, key, _ in found] == [
        ("warning", "path"),
        ("warning", "broken"),
        ("warning", "experts.a.key"),
        ("warning", "experts.a.skills.s.name"),
    ]


def test_what_only_warns_still_loads(write):
    unbounded = "maxSteps = 0\nmaxDepth = 0\n"
    loaded = load_project(
        write(f'{unbounded}{EXPERT}delegates = ["b", "b@1.0.0", "a"]\n[experts.b]\ninstruction = "x"')
    )
    assert loaded.project.experts["a"].delegates == ("b", "a")
    assert len(loaded.warnings) == 2


def test_limits_are_allowed_up_to_the_last_character(problems):
    text = f'[experts.a]\ninstruction = "{"x" * MAX_INSTRUCTION}"\ndescription = "{"é" * MAX_DESCRIPTION}"'
    assert problems(text) == []
