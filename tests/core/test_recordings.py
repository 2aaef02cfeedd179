"""The file of a recording: what is taken out of it, how it is written, and what is said of one that is none."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.core.secrets.masking import SecretMasker, known_secrets
from perstack.errors import UsageError
from perstack.recordings.model import (
    MAX_RECORDING_BYTES,
    CalledBy,
    RecordedCall,
    RecordedFile,
    RecordedReply,
    RecordedRun,
    RecordedText,
    Recording,
    SaidApproval,
    SaidForm,
    format_call,
    parse_recording,
)
from perstack.recordings.play import chosen_tools

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
CALL = RecordedCall(
    call="c1",
    tool="exec",
    args={"command": "ls", "args": ["-l"]},
    skill="@perstack/base",
    result=(
        RecordedText(text="a\nb"),
        RecordedFile(blob=ABC, mime_type="image/png", size=3),
    ),
    said=(SaidApproval(decision="once"), SaidForm(question="where?", action="accept", content={"city": "Rome"})),
)
ONE = Recording(
    job="j",
    runs=(
        RecordedRun(expert="a", query="q", replies=(RecordedReply(step=1, reply=(RecordedText(text="x"), CALL)),)),
        RecordedRun(expert="b", query="two\nlines", called_by=CalledBy(run=0, call="c1")),
    ),
    blobs={ABC: "YWJj"},
)


def test_what_is_written_is_read_again_and_written_the_same() -> None:
    data = ONE.to_bytes()
    assert parse_recording(data, "it") == ONE
    assert parse_recording(data, "it").to_bytes() == data
    assert json.loads(data)["format"] == "perstack-recording/1"
    assert max(map(len, data.decode().splitlines())) <= 120


@given(st.text(), st.lists(st.text()))
def test_any_text_comes_back_unchanged(text: str, lines: list[str]) -> None:
    reply = RecordedReply(step=1, reply=(RecordedText(text=text), RecordedText(text="\n".join(lines))))
    one = Recording(job="j", runs=(RecordedRun(expert="a", query=text, replies=(reply,)),))
    data = one.to_bytes()
    try:
        text.encode()
        "".join(lines).encode()
    except UnicodeEncodeError:
        return  # half of a character is not kept
    assert parse_recording(data, "it") == one


def changed_document(*path: str | int, to: object) -> bytes:
    document = json.loads(ONE.to_bytes())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a recording"),
        (b"\xff\xfe\x00", "not a recording"),
        (ONE.to_bytes()[:200], "not a recording"),
        (b"[" * 100_000, "not a recording"),
        (b'{"format": 1}', "its `format` is 1, not perstack-recording/1"),
        (b'{"format": "perstack-recording/2"}', 'its `format` is "perstack-recording/2"'),
        (b'{"experts": {}}', "it has no `format`"),
        (b"3", "it has no `format`"),
        (b" " * (MAX_RECORDING_BYTES + 1), "at most 32 MiB"),
        (changed_document("runs", 0, "replies", 0, "step", to=10**400), "runs.0.replies.0.step"),
        (changed_document("runs", 0, "replies", 0, "step", to="1e999"), "runs.0.replies.0.step"),
        (
            changed_document("runs", 0, "replies", 0, "stepp", to=1),
            "runs.0.replies.0.stepp: Extra inputs are not permitted",
        ),
        (
            changed_document("runs", 0, "replies", 0, "reply", 0, to={"image": 1}),
            "it needs one of the keys call",
        ),
        (changed_document("runs", 1, "calledBy", "run", to=1), "runs.1.calledBy.run: 1 is not an earlier Run"),
        (changed_document("runs", 1, "calledBy", "run", to=-1), "runs.1.calledBy.run"),
        (changed_document("blobs", to={}), "blobs: ba7816"),
        (
            changed_document("blobs", ABC, to="YWJk"),
            "blobs.ba7816",
        ),
        (
            changed_document("blobs", ABC, to="\N{SNOWMAN}"),
            "blobs.",
        ),
        (changed_document("runs", to=[]) + b"x", "not a recording"),
    ],
)
def test_what_is_none_is_one_line_with_the_place_and_the_remedy(data: bytes, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_recording(data, "job.json")
    message = str(caught.value)
    assert message.startswith("job.json: ")
    assert words in message
    assert message.endswith("record the Job again")
    assert "\n" not in message
    assert len(message) < 600


@given(st.binary(max_size=300))
def test_no_bytes_bring_anything_but_that_line(data: bytes) -> None:
    with pytest.raises(UsageError):
        parse_recording(data, "it")


@given(st.data())
def test_a_recording_with_any_value_in_any_place_is_read_or_refused(data: st.DataObject) -> None:
    document = json.loads(ONE.to_bytes())
    place: object = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place))) if isinstance(place, list) else []
        key = data.draw(st.sampled_from(keys))
        inner = place[key]  # type: ignore[index]
        if not inner or not isinstance(inner, dict | list) or data.draw(st.booleans()):
            place[key] = data.draw(  # type: ignore[index]
                st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
                | st.lists(st.integers(), max_size=2) | st.dictionaries(st.text(), st.integers(), max_size=2)
            )  # fmt: skip
            break
        place = inner
    try:
        parse_recording(json.dumps(document).encode(), "it").runs_by_place()
    except UsageError as error:
        lines = str(error).splitlines()
    else:
        lines = []
    assert len(lines) < 2


def test_a_chain_of_runs_without_end_is_refused_in_bounded_time() -> None:
    runs = [{"expert": "a", "query": "q"}]
    runs += [{"expert": "a", "query": "q", "calledBy": {"run": n, "call": "c"}} for n in range(20_000)]
    began = time.monotonic()
    with pytest.raises(UsageError, match="more than 200 Runs"):
        parse_recording(json.dumps({"format": "perstack-recording/1", "job": "j", "runs": runs}).encode(), "it")
    assert time.monotonic() - began < 10


def test_a_call_is_shown_as_permission_rules_are_written() -> None:
    assert format_call("exec", {"command": "ls", "args": ["-l"]}) == 'exec(command=ls, args=["-l"])'
    assert len(format_call("write", {"text": "x" * 1000})) < 200


HIDING = SecretMasker(
    known_secrets({"PWD": "/home/ann/work", "MY_TOKEN": "known-to-the-env", "PATH": "/usr/bin", "SHORT_KEY": "abc"})
)


@pytest.mark.parametrize(
    "secret",
    [
        "API_KEY=abcd1234",
        "export DB_PASSWORD=correcthorse",
        "before DB_PASSWORD=hunter2x; after",
        "password: correcthorse",
        '{"output": "APP_SECRET=abcdefgh\\n"}',
        '{"api_key": "abcdefgh"}',
        "api_key = 'correct horse'",
        "known-to-the-env",
        "https://me:abcdefgh@example.com",
        "https://example.com/?access_token=abcdefgh",
        f"sk-{'a1' * 12}",
        "-----BEGIN RSA PRIVATE KEY-----\nabcdefgh\nijklmnop\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_in_a_text_is_taken_out(secret: str) -> None:
    hidden = HIDING.text(f"some\n{secret}\nmore") if not secret.startswith("{") else HIDING.text(secret)
    assert "[redacted]" in hidden
    for value in ("abcd1234", "correcthorse", "hunter2x", "abcdefgh", "correct horse", "known-to", "a1a1"):
        assert value not in hidden
    assert HIDING.text(hidden) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "token: str",
        "password = config.password",
        "    token: string,",
        "PASS: test_writer",
        "max_tokens=4096",
        "API_KEY=$API_KEY",
        "api_key=${API_KEY}",
        "The secret of good logs is order.",
        '{"tokens": 12}',
        "key: value",
        "PWD=/home/ann/work",
        "in /home/ann/work/notes.txt",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert HIDING.text(text) == text


def test_arguments_are_hidden_by_their_names_and_as_options() -> None:
    args = {"password": "abcdefgh", "args": ["--token", "abcdefgh", "x"], "deep": {"apiKey": "abcdefgh"}, "n": 3}
    assert HIDING.args(args) == {
        "password": "[redacted]",
        "args": ["--token", "[redacted]", "x"],
        "deep": {"apiKey": "[redacted]"},
        "n": 3,
    }


def test_long_texts_are_looked_through_in_linear_time() -> None:
    began = time.monotonic()
    for text in ("a" * 400_000, "token=" * 50_000, "a:" * 100_000, '"' * 100_000, "x=" + " " * 300_000, "://" * 30_000):
        HIDING.text(text)
    assert time.monotonic() - began < 20


def test_the_first_pattern_that_names_a_tool_counts() -> None:
    chosen = chosen_tools({"exec": "live", "github/*": "live", "*": "recorded"}, "tools")
    assert chosen.is_live("@perstack/base", "exec")
    assert chosen.is_live("github", "search")
    assert not chosen.is_live("other", "search")
    assert not chosen.is_live("@perstack/base", "writeTextFile", changes_files=True)
    assert chosen_tools(None, "tools").is_live("@perstack/base", "writeTextFile", changes_files=True)
