"""Recognise an endpoint's refusal of a request that does not fit the model's context, and read the context's size.

Vendors agree on neither status nor code nor wording, and one model server often stands behind another. `verdict` reads,
in this order:

1. the status: some are never about the size of a request;
2. the exceptions: wordings of rate limits, output limits, credentials and single parts, which also speak of tokens;
3. the codes of documented errors, and status 413;
4. the wordings: rules about what is too large, not sentences, so that an unknown server's words match too.

A refusal that none of them explains is `UNEXPLAINED`: the engine may take it for an overflow if the request was larger
than all that were answered. A new wording is a row of a table here, and of the table of refusals in the tests.
"""

from __future__ import annotations

import re
from enum import Enum

from perstack.dataclass import dataclass

_MAX_SEARCHED_CHARS = 20_000


class Verdict(Enum):
    """The meaning of a refusal for the size of its request."""

    OVERFLOW = "overflow"
    RATE_LIMIT = "rateLimit"  # a rate limit with a status that does not mean one
    UNEXPLAINED = "unexplained"  # may be an overflow
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An endpoint's refusal: its status, its message, and the whole body, in which codes are searched."""

    status: int
    message: str
    body: str = ""

    @property
    def text(self) -> str:
        """The searched part of message and body."""
        return f"{self.message[:_MAX_SEARCHED_CHARS]}\n{self.body[:_MAX_SEARCHED_CHARS]}"


_BY_STATUS_ALONE = frozenset((401, 402, 403, 404, 405, 408, 409, 501, 529))
"""Statuses that determine the cause without the words."""
_UNEXPLAINED = frozenset((400, 413, 422, 500))


# `re` compiles these rules at the first refusal, which most processes never see, and keeps them: compiling all of them
# at import took 20 ms of each start.


def _any(*rules: str) -> str:
    """Return a pattern that matches where any of the rules does, without regard to case."""
    return f"(?i:{'|'.join(rules)})"


_RATE = _any(
    r"rate[ _-]?limit|too many requests|throttl",
    r"(?:tokens|requests|input tokens) per (?:second|min|minute|hour|day)|\b(?:TPM|RPM|TPD|RPD)\b",
    r"wait before (?:trying|retrying)",
)
_LIMIT_OF_RATE = _any(r"\blimit:? ([\d,]+),(?: used:? [\d,]+,)? requested:? ([\d,]+)")
"""Groq's and OpenAI's rate limit in tokens. A request for more than the whole limit never fits."""
_OTHER_CAUSES = _any(  # causes other than size and rate
    r"service (?:is )?(?:temporarily )?unavailable|overloaded|(?:at|over|no|insufficient) capacity",
    r"quota|billing|credits?\b|insufficient (?:balance|funds)",
    r"api[ _-]?key|(?:access|auth\w*|bearer|api|security|refresh|id) ?tokens?\b|\bJWT\b|credential|unauthori[sz]ed",
    r"(?:invalid|expired|malformed|missing|unknown) tokens?\b|tokens? (?:has |is |was )?(?:expired|invalid|revoked)",
    r"un(?:known|recogni[sz]ed|supported|expected) (?:request )?(?:parameter|argument|field|key|keyword|propert)",
    r"special tokens?|stop (?:token|sequence)s?|eos[ _]token",
)
_PART = _any(  # a single part that is too large or too long
    r"\b(?:messages|input|contents|tools|functions|content|parts)(?:\[\d+\]|\.\d+)",
    r"\b(?:images?|pixels?|pdf|pages?|document|audio|video|file|attachment)s?\b",
    r"(?:string|array|name|description|identifier|\bid) (?:is )?too long|\bschema\b|\benum\b|nest(?:ed|ing)",
    r"(?:number of|too many) (?:tools|functions|messages|images|stop)",
)
_OUTPUT = _any(
    r"max(?:imum)?[ _]?(?:new_|new |output_|output |completion_|completion )?tokens?\b|maxOutputTokens|maxTokens",
    r"(?:output|completion|generated|response|thinking|reasoning)[ _]tokens?|budget_tokens",
)
_NOT_OUTPUT_ALONE = _any(  # the output counts together with the input, or the maximum is for the input
    r"\binputs?\b|\bprompts?\b|\bconversation\b|context (?:length|limit|size)|in the messages|length of the messages",
    r"max(?:imum)? (?:number of )?(?:input |prompt )?tokens? allowed|context window of",
)

_CODES = (
    r'"(?:code|type|error|status|reason|error_code)"\s*:\s*"?(?:'
    r"context_length_exceeded|exceed_context_size_error|(?:model_)?context_window_exceeded|ContextWindowExceededError"
    r"|model_max_prompt_tokens_exceeded|prompt_too_long|input_too_long|tokens_limit_reached|context_too_large"
    r'|1261)\b"?'
)
"""Codes of documented errors: OpenAI's format, llama.cpp's server, LiteLLM, GitHub, Z.ai (1261)."""

_TOO_LARGE = (
    r"(?:exceed|overflow|surpass|too (?:long|large|big|many|much)|(?:longer|greater|larger|bigger|more) than"
    r"|over the|beyond|out of|less than|at most|up to|only|not enough|enough|maximum|max\b|max[_ ]|limit|<=|>|reduce"
    r"|shorten|shorter|(?:not|n't) fit)"
)
_NEAR = r"[^\n]{0,160}?"
_SIZE = r"(?:context(?:[ _-]?(?:length|window|size|limit|capacity))|max_model_len|max_seq_len|n_ctx|model length)"
_ALL = r"(?:\bprompt|\binputs?\b|\bconversation|\bmessages?\b|\brequest\b|\bhistory|\bsequence|\bcontext\b|\bpayload)"
_WORDS = _any(
    # the size of the context, and that something is too large for it, in either order: OpenAI, vLLM, LM Studio, Ollama
    rf"{_SIZE}{_NEAR}{_TOO_LARGE}|{_TOO_LARGE}{_NEAR}{_SIZE}",
    # the whole input is too large: Anthropic, Bedrock, Z.ai, Baidu, NVIDIA
    rf"{_ALL}[^\n.;]{{0,80}}?(?:exceed|overflow|too (?:long|large|big|many)|(?:longer|greater|larger) than"
    r"|over the|max(?:imum)? (?:\w+ )?length|less than|should be \[\d|must be <=|(?:not|n't) fit)",
    r"max(?:imum)? (?:prompt|input|sequence|request|message) (?:length|size)",
    rf"(?:{_ALL}|\btokens?\b)[^\n;]{{0,80}}?\d{{3,}}\)?(?: tokens)? ?(?:>=?|/) ?\d{{3,}}",
    r"request (?:entity|body)? ?too large|payload too large|(?:input|prompt) (?:\w+ ){0,3}(?:limit|exceeded)\b",
    # a count of tokens is too large: Google, Kimi, Cohere, TGI, SiliconFlow
    r"too many (?:input |prompt |total )?tokens|tokens?\b[^\n.;]{0,60}?(?:exceed|limit (?:is|of|reached)|less than)",
    r"exceed\w*[^\n.;]{0,60}?\btokens?\b|token limit exceed|less than \d+ tokens",
    # advice how to repair it
    r"(?:reduce|shorten) (?:the length|your|the)[^\n.;]{0,20}(?:prompt|message|input|context|conversation)",
    r"shorter (?:prompt|input|message|conversation)",
    # vLLM: what the prompt leaves for the reply
    r"max_(?:completion_)?tokens[^\n]{0,40}at least 1, got -\d",
    # context "the" overflows, as LM Studio says
    r"context\b[^\n.;]{0,12}overflow",
)


def verdict(refusal: Refusal, *, has_code: bool = False) -> Verdict:
    """Return what the refusal says about the size of its request. `has_code`: a code said that it was too large."""
    status, text = refusal.status, refusal.text
    if status in _BY_STATUS_ALONE or 300 <= status < 400:
        return Verdict.OTHER
    if re.search(_RATE, text):
        return Verdict.OVERFLOW if _exceeds_whole_limit(text) else Verdict.RATE_LIMIT
    if status == 429:
        return Verdict.OTHER
    if has_code or re.search(_CODES, text):
        return Verdict.OVERFLOW
    words = refusal.message[:_MAX_SEARCHED_CHARS]
    if re.search(_OTHER_CAUSES, words) or (re.search(_OUTPUT, words) and not _is_of_input(words)):
        return Verdict.OTHER
    if re.search(_PART, words):
        return Verdict.OTHER
    if status == 413 or re.search(_WORDS, words):
        return Verdict.OVERFLOW
    return Verdict.UNEXPLAINED if status in _UNEXPLAINED else Verdict.OTHER


def _exceeds_whole_limit(text: str) -> bool:
    match = re.search(_LIMIT_OF_RATE, text)
    return match is not None and _integer(match[2]) > _integer(match[1])


def _is_of_input(words: str) -> bool:
    return re.search(_NOT_OUTPUT_ALONE, words) is not None or re.search(r"got -\d", words) is not None


# The size of the context.

_NUMBER = r"(\d[\d,_]{2,11})"
_WINDOW = _any(  # the model's context size in tokens, in the wording of documented errors
    rf"(?:context|prompt) (?:length|window|size)(?: of this model| allowed)?(?: is| of|:)+ ?(?:only )?{_NUMBER}"
    rf"|with {_NUMBER} maximum context|> {_NUMBER}|allowed \({_NUMBER}\)|configured limit of {_NUMBER}"
    rf"|token limit:? {_NUMBER}|less than {_NUMBER} tokens|must be <= {_NUMBER}|should be \[\d+, ?{_NUMBER}\]"
    rf'|"n_ctx" ?: ?{_NUMBER}'
    rf"|(?:context|model) length (?:of |is )?\(?{_NUMBER}|for this model \(\d+ > {_NUMBER}"
    rf"|maximum (?:allowed )?(?:input|sequence) length (?:of )?{_NUMBER}|input length of {_NUMBER} tokens"
    rf"|exceeds the (?:token )?limit of {_NUMBER}|while limit is {_NUMBER}"
    rf"|n_ctx[:=]+ ?{_NUMBER}|max_seq_len \(?{_NUMBER}|token size {_NUMBER}|cannot exceed {_NUMBER}"
    rf"|max(?:imum)? size: ?{_NUMBER} tokens|limit:? {_NUMBER}, (?:used:? [\d,]+, )?requested",
)


def window_in(text: str) -> int | None:
    """Return a model's context size in tokens as stated in an error's text; None if it is not."""
    match = re.search(_WINDOW, text[:_MAX_SEARCHED_CHARS])
    if match is None:
        return None
    return _integer(next(group for group in match.groups() if group is not None))


def _integer(digits: str) -> int:
    return int(re.sub(r"[,_]", "", digits) or 0)
