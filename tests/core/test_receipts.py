"""What receipts are made of: DSSE as it is specified, and statements that hostile bytes cannot pass for."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perstack.audit.receipt_statements import (
    PAYLOAD_TYPE,
    Envelope,
    LogEnd,
    LogHashes,
    compare_with_receipt,
    count_events_after,
    envelope_of,
    pae,
    read_record,
    statement_of,
)
from perstack.core.base.chain import EMPTY_LOG, seal
from perstack.core.base.ids import Owner


def statement(*payloads: bytes):
    """A statement over one log, and that log."""
    lines, head = seal(EMPTY_LOG, payloads)
    digest = urlsafe_b64encode(sha256(payloads[0]).digest())[:43].decode()
    end = LogEnd("job-1", head.seq, head.hash, digest)
    made = statement_of(Owner("job", "job"), [end], created_on="2026-11-22T03:00:00Z", runtime_version="1")
    return made, LogHashes(_hashes(lines), digest)


def _hashes(lines):
    return [json.loads(line)["hash"] for line in lines]


def test_what_is_signed_is_the_test_vector_of_the_dsse_specification():
    wanted = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == wanted


def test_lengths_in_what_is_signed_count_bytes():
    assert pae("ä", "日".encode()) == "DSSEv1 2 ä 3 日".encode()


@given(st.text(), st.binary(), st.text(), st.binary())
def test_no_two_payloads_have_the_same_encoding(kind, body, other_kind, other_body):
    try:
        same = pae(kind, body) == pae(other_kind, other_body)
    except UnicodeEncodeError:
        return
    assert same == ((kind, body) == (other_kind, other_body))


def test_an_envelope_is_the_json_of_the_dsse_specification():
    made = envelope_of("http://example.com/HelloWorld", b"hello world", "key", b"\xfb\xff")
    assert json.loads(made.to_json()) == {
        "payload": "aGVsbG8gd29ybGQ=",
        "payloadType": "http://example.com/HelloWorld",
        "signatures": [{"keyid": "key", "sig": "+/8="}],
    }


def test_an_envelope_in_the_alphabet_for_urls_reads_the_same():
    made = Envelope.model_validate({"payload": "-_8=", "payloadType": "x", "signatures": [{"sig": "-_8="}]})
    assert (made.body(), made.signatures[0].value()) == (b"\xfb\xff", b"\xfb\xff")


def test_a_statement_is_in_totos_with_the_head_of_each_run_in_hex():
    made, places = statement(b'{"a":1}', b'{"a":2}')
    found = json.loads(made.to_json())
    assert (found["_type"], found["predicateType"]) == ("https://in-toto.io/Statement/v1", "urn:perstack:receipt:v1")
    (subject,) = found["subject"]
    assert (subject["name"], subject["annotations"]) == ("job-1", {"seq": 2})
    head = bytes.fromhex(subject["digest"]["sha256"])
    assert urlsafe_b64encode(head)[:43].decode() == places.hashes[1]
    definition = {"name": "job-1-1", "digest": {"sha256": sha256(b'{"a":1}').hexdigest()}}
    assert found["predicate"]["definitions"] == [definition]


def test_a_log_is_right_if_it_begins_with_what_was_stated():
    made, _ = statement(b'{"a":1}', b'{"a":2}')
    _, longer = statement(b'{"a":1}', b'{"a":2}', b'{"a":3}')
    assert compare_with_receipt(made, {"job-1": longer}, "the receipt") == []
    assert count_events_after([made], {"job-1": longer}) == 1


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([b'{"a":1}'], "the log ends at 1, but the receipt says it had 2 events"),
        ([b'{"a":1}', b'{"a":3}'], "the log was rewritten"),
        ([b'{"a":0}', b'{"a":2}', b'{"a":3}'], "the log was rewritten"),
    ],
)
def test_a_log_that_was_cut_or_rewritten_is_found(payloads, words):
    made, _ = statement(b'{"a":1}', b'{"a":2}')
    _, now = statement(*payloads)
    (finding,) = compare_with_receipt(made, {"job-1": now}, "the receipt")
    assert words in finding.message


def test_a_log_that_is_gone_is_found():
    made, _ = statement(b'{"a":1}')
    (finding,) = compare_with_receipt(made, {}, "the receipt")
    assert finding.message == "the log ends at 0, but the receipt says it had 1 events"


def test_a_receipt_reads_alone_and_in_an_envelope():
    made, _ = statement(b'{"a":1}')
    assert read_record(made.to_json()).statement == made
    envelope = envelope_of(PAYLOAD_TYPE, made.to_json(), "", b"x")
    assert read_record(envelope.to_json()).statement == made


WHOLE = statement(b'{"a":1}')[0].to_json()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"payload":"' + b"A" * 7 + b'","payloadType":"application/vnd.in-toto+json","signatures":[{"sig":""}]}',
        envelope_of("text/plain", WHOLE, "", b"").to_json(),
        json.dumps({"payload": b64encode(WHOLE).decode(), "payloadType": PAYLOAD_TYPE, "signatures": []}).encode(),
        WHOLE.replace(b"receipt:v1", b"receipt:v2"),
        WHOLE.replace(b"Statement/v1", b"Statement/v0.1"),
        WHOLE.replace(b'"name":"job-1"', b'"name":"\\u001b]0;x"'),
        WHOLE.replace(b'"seq":1', b'"seq":0'),
        json.dumps({**json.loads(WHOLE), "subject": []}).encode(),
    ],
    ids=range(11),
)
def test_what_is_no_receipt_is_an_error_of_one_line(data):
    with pytest.raises(ValueError, match=r"\A.{5,200}\Z"):
        read_record(data)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_damaged_receipt_reads_or_is_an_error(place, byte):
    data = bytearray(WHOLE)
    data[place] = byte
    said = None
    try:
        record = read_record(bytes(data))
    except ValueError as error:
        said = str(error)
    assert record.statement.subject if said is None else len(said.splitlines()) == 1
