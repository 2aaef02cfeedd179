"""Decide what to leave out when a Run's context is nearly full, from the state alone, so that replay decides alike.

- `command_for_full_context` is called by `pending` before a generation and returns nothing, `Shrink`, `Compact` or
  `Fail`.
- Below `compactAt` of the window nothing is done. Above it, old results of read-only tools shrink, all at once, if that
  frees enough to last; otherwise the older turns are summarised.
- The instruction, the first and the latest query, pinned results and the latest turns are never summarised. Todos are
  state, and are part of the text that replaces what is left out.

Token counts are the endpoint's latest count plus an estimate, on the high side, of what was added since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from perstack.core.base.usage import Usage
from perstack.core.definitions.settings import ContextPolicy
from perstack.core.definitions.skills import LOOP_KINDS, DecidedCall
from perstack.core.messages.messages import (
    BlobPart,
    ExpertMessage,
    Message,
    ToolMessage,
    ToolResultPart,
    UserMessage,
    estimated_tokens,
    text_of,
    tokens_of_contents,
)
from perstack.core.messages.tool_search import SEARCH_TOOL
from perstack.core.runs.commands import Compact, Fail, Shrink
from perstack.core.runs.facts import ErrorInfo, ShrunkResult
from perstack.core.runs.state import ContextState, RequestSize, Run
from perstack.dataclass import replace

HEAD_CHARS = 400  # characters kept of the beginning of a result that shrinks; `TAIL_CHARS` of its end
TAIL_CHARS = 200
OVERFLOW = "ContextOverflow"  # name of the error that an endpoint raises for a request which does not fit
RECALL_TOOL = "recallHistory"
PIN_TOOL = "pin"

# share of the window to free at least; freeing less would invalidate the prompt cache at every step
_MIN_FREED_SHARE = 1 / 8
_SUMMARY_SHARE = 1 / 8
_MIN_SUMMARY_TOKENS = 256
_MAX_SUMMARY_TOKENS = 4_000
_MIN_ACTUAL_SHARE = 3 / 4  # lower bound of the actual tokens, as a share of their estimate
_NEAR_WINDOW_SHARE = 3 / 4  # share of the window from which on an unexplained refusal may be an overflow
_MIN_REFUSED_TOKENS = 1_500  # the smallest windows hold 2,048 tokens: a shorter request is refused for another reason


def policy_of(run: Run) -> ContextPolicy | None:
    """Return the Run's policy for a nearly full context; None if it does nothing."""
    context_policy = run.limits.context
    return None if context_policy is None or context_policy.is_off else context_policy


def window_of(run: Run) -> int | None:
    """Return the tokens that the model's context can hold; None if unknown."""
    context_policy = run.limits.context
    declared = run.context.window if context_policy is None or context_policy.window is None else context_policy.window
    learned = run.context.learned
    return learned if declared is None else declared if learned is None else min(declared, learned)


def next_request_tokens(run: Run, tools_bytes: int = 0) -> int:
    """Return the estimated tokens of the next generation's request.

    `tools_bytes` is the size of its tools, which counts until an endpoint has counted them.
    """
    messages, counted = run.messages, run.context.counted
    total = messages.tokens(len(messages))
    if counted is None or counted.messages > len(messages):
        tools = 0 if run.context.overhead else estimated_tokens(tools_bytes)
        return _overhead(run) + tools + total
    return max(0, counted.tokens - run.context.freed) + total - messages.tokens(counted.messages)


def _overhead(run: Run) -> int:
    return max(run.context.overhead, estimated_tokens(len(run.instruction.encode(errors="replace"))))


def window_after_overflow(run: Run, reported: int | None) -> int:
    """Return the window that an overflow reveals: the size `reported` by the endpoint, or less than was sent.

    A reported size below half of the largest answered request is not believed: it may count something else.
    """
    sent_tokens = next_request_tokens(run)
    window = window_of(run)
    if reported is not None and reported > 0:
        return max(reported, run.context.fitted // 2)
    lower_bound = max(run.context.tokens, sent_tokens * 9 // 10, run.context.fitted // 2)
    return lower_bound if window is None else min(window, lower_bound)


def window_after_refusal(run: Run, refusal: ErrorInfo) -> int | None:
    """Return the window that an unexplained refusal may reveal; None if it is not an overflow, or no room can be made.

    It may be one if the request was larger than every answered one, or near the known window. Room is made only once,
    so that a refusal for another reason ends the Run.
    """
    size, window = run.messages.tokens(len(run.messages)), window_of(run)
    is_near = window is not None and next_request_tokens(run) >= _NEAR_WINDOW_SHARE * window
    is_large = size >= _MIN_REFUSED_TOKENS and (size > run.context.fitted or is_near)
    if policy_of(run) is None or run.context.is_relieved or not is_large:
        return None
    revealed = window_after_overflow(run, None)
    supposed = replace(run, context=replace(run.context, learned=revealed, overflow=refusal))
    return revealed if isinstance(command_for_full_context(supposed), Compact) else None


def is_inferred(overflow: ErrorInfo | None) -> bool:
    """Return True if the overflow was only inferred from an error that does not name it."""
    return overflow is not None and overflow.name != OVERFLOW


def command_for_full_context(run: Run) -> Shrink | Compact | Fail | None:
    """Return what to do before the next generation; None if nothing."""
    context_policy, window = policy_of(run), window_of(run)
    if context_policy is None or window is None:
        return None
    overflow = run.context.overflow
    now_tokens = next_request_tokens(run)
    if overflow is None and now_tokens <= context_policy.compact_at * window:
        return None
    shrink = _shrink(run, context_policy, window, now_tokens) if overflow is None else None
    if shrink is not None:
        return shrink
    compact = _compact(run, context_policy, window, now_tokens)
    if compact is not None:
        return compact
    if overflow is not None or now_tokens * _MIN_ACTUAL_SHARE > window:
        return Fail(too_large(run, overflow))
    return None


def command_before_repeat(run: Run) -> Shrink | Compact | Fail | None:
    """Return what to do before a started generation is repeated: nothing, unless it or the new model does not fit."""
    return command_for_full_context(run) if run.context.overflow is not None or run.is_switched else None


# --- old results --------------------------------------------------------------------------------------------------


def short_text(part: ToolResultPart, blob: str, head: int, tail: int) -> str:
    """Return what the model sees of a shrunk result. Replay compares it with recorded logs: never change the form."""
    text = text_of(part.contents)
    blobs = "".join(f"\n[{item.mime_type}: blob:{item.sha256}]" for item in part.contents if isinstance(item, BlobPart))
    if len(text) <= head + tail:
        return text + blobs
    end = text[-tail:] if tail else ""
    note = f"\n[… {len(text) - head - tail} characters are not shown any more; the whole text: blob:{blob} …]\n"
    return f"{text[:head]}{note}{end}{blobs}"


def blob_of(part: ToolResultPart) -> bytes:
    """Return the bytes of the blob that holds a result's text."""
    return text_of(part.contents).encode(errors="replace")


def _shrink(run: Run, context_policy: ContextPolicy, window: int, now_tokens: int) -> Shrink | None:
    results: list[ShrunkResult] = []
    freed = 0
    for event_id, part in _old_results(run, context_policy.keep_results):
        saved = tokens_of_contents(part.contents) - estimated_tokens(HEAD_CHARS + TAIL_CHARS + 120)
        if saved > HEAD_CHARS // 2:
            digest = sha256(blob_of(part)).hexdigest()
            results.append(ShrunkResult(at=event_id, tool_call_id=part.tool_call_id, blob=digest))
            freed += saved
    max_left = (context_policy.compact_at - _MIN_FREED_SHARE / 2) * window
    is_enough = freed >= _MIN_FREED_SHARE * window and now_tokens - freed <= max_left
    return Shrink(tuple(results), HEAD_CHARS, TAIL_CHARS) if results and is_enough else None


def _old_results(run: Run, keep: int) -> Iterator[tuple[str, ToolResultPart]]:
    """Yield the results of read-only tools older than the latest `keep` steps, with their event ids."""
    messages = run.messages
    steps = [index for index in range(len(messages)) if isinstance(messages[index], ToolMessage)]
    may_shrink = run.context.read_only - run.context.pinned - {SEARCH_TOOL}
    for index in steps[: max(0, len(steps) - keep)]:
        message = messages[index]
        if isinstance(message, ToolMessage):
            yield from ((messages.place(index), part) for part in message.contents if part.tool_name in may_shrink)


# --- compaction ---------------------------------------------------------------------------------------------------


def summary_tokens(window: int) -> int:
    """Return the maximum tokens of a summary."""
    return max(_MIN_SUMMARY_TOKENS, min(_MAX_SUMMARY_TOKENS, int(window * _SUMMARY_SHARE)))


def _compact(run: Run, context_policy: ContextPolicy, window: int, now_tokens: int) -> Compact | None:
    """Return the range to summarise, with as many of the latest turns kept as possible; None if it frees too little."""
    latest_start = _latest_turn(run)
    best: Compact | None = None
    for start in dict.fromkeys((_first_recent(run, context_policy.keep_recent * window, latest_start), latest_start)):
        plan = _plan(run, start, window, now_tokens)
        if plan is None:
            continue
        best = plan
        if (
            plan.tokens_before - plan.tokens_after >= _MIN_FREED_SHARE * window
            and plan.tokens_after <= context_policy.compact_at * window
        ):
            return plan
    if best is None:
        return None
    freed = best.tokens_before - best.tokens_after
    return best if freed >= _MIN_FREED_SHARE * window or (run.context.overflow is not None and freed > 0) else None


def _latest_turn(run: Run) -> int:
    messages = run.messages
    last = len(messages) - 1
    if last >= 0 and isinstance(messages[last], UserMessage):
        return last
    return next((index for index in range(last, -1, -1) if _begins_turn(messages, index)), 0)


def _begins_turn(messages: Sequence[Message], index: int) -> bool:
    """Return True for a reply, but not for the rest of a paused one, which must stay with its beginning."""
    is_reply = isinstance(messages[index], ExpertMessage)
    return is_reply and not (index and isinstance(messages[index - 1], ExpertMessage))


def _first_recent(run: Run, max_tokens: float, latest_start: int) -> int:
    """Return the index of the oldest reply from which on all messages have at most `max_tokens` tokens."""
    messages = run.messages
    total = messages.tokens(len(messages))
    start = latest_start
    for index in range(latest_start - 1, 0, -1):
        if total - messages.tokens(index) > max_tokens:
            break
        if _begins_turn(messages, index):
            start = index
    return start


def _plan(run: Run, start: int, window: int, now_tokens: int) -> Compact | None:
    messages = run.messages
    never = always_kept(run)
    dropped = [index for index in range(start) if index not in never]
    if not dropped or all(messages.place(index) in run.context.summaries for index in dropped):
        return None
    first, last = dropped[0], dropped[-1]
    saved = sum(messages.tokens(index + 1) - messages.tokens(index) for index in dropped)
    tokens_after = now_tokens - saved + summary_tokens(window)
    kept = tuple(messages.place(index) for index in range(first, last + 1) if index in never)
    return Compact(messages.place(first), messages.place(last), kept, now_tokens, max(0, tokens_after))


def always_kept(run: Run) -> set[int]:
    """Return the indices of messages never left out: the first and latest query, and turns with pinned results."""
    messages, context = run.messages, run.context
    # A text that a person posted later must not displace the latest query; it is sent again with the summary.
    not_queries = context.summaries.union(run.taken_posts.values())
    queries = [
        index
        for index in range(len(messages))
        if isinstance(messages[index], UserMessage) and messages.place(index) not in not_queries
    ]
    kept = {queries[0], queries[-1]} if queries else set[int]()
    # The correction of a rejected result is a user message too, and would count as the latest query; the Run's own
    # query is still the task and must stay.
    kept |= {index for index in queries if messages.place(index) == run.start.id}
    if context.pinned:
        for index in range(1, len(messages)):
            message = messages[index]
            if isinstance(message, ToolMessage) and any(part.tool_name in context.pinned for part in message.contents):
                kept |= {index - 1, index}
    return kept


# --- contexts that cannot fit -------------------------------------------------------------------------------------


def too_large(run: Run, overflow: ErrorInfo | None) -> ErrorInfo:
    """Return the error of a context from which nothing more can be left out, naming the parts that fill it.

    For an overflow that was only inferred, return the endpoint's own error.
    """
    if overflow is not None and is_inferred(overflow):
        return overflow
    window, now_tokens = window_of(run) or 0, next_request_tokens(run)
    parts = sorted(_kept_parts(run), key=lambda item: -item[1])[:3]
    largest = "; ".join(f"{name}, about {tokens:,} tokens" for name, tokens in parts)
    quote = "" if overflow is None else f" The endpoint says: {overflow.message}"
    return ErrorInfo(
        name=OVERFLOW,
        message=f"the context has about {now_tokens:,} tokens and cannot be reduced to the {window:,} of the model's"
        f" window. The largest parts that cannot be left out: {largest}. Shorten the largest, or use a model with a"
        f" larger window.{quote}",
        status_code=None if overflow is None else overflow.status_code,
    )


def _kept_parts(run: Run) -> Iterator[tuple[str, int]]:
    """Yield the name and the estimated tokens of each part that cannot be left out."""
    messages = run.messages
    yield "the instruction with the tools", _overhead(run)
    latest = _latest_turn(run)
    for index in sorted(always_kept(run) | set(range(latest, len(messages)))):
        message = messages[index]
        if isinstance(message, ToolMessage):
            for part in message.contents:
                is_pinned = part.tool_name in run.context.pinned
                name = "the pinned result" if is_pinned else "the latest result"
                yield f"{name} of {part.tool_name} ({part.tool_call_id})", tokens_of_contents(part.contents)
        elif isinstance(message, UserMessage):
            yield "the query" if index else "the first query", tokens_of_contents(message.contents)
        else:
            yield "the latest reply", messages.tokens(index + 1) - messages.tokens(index)


# How events change the context: what the model sees from then on.


def remember_called_tools(run: Run, calls: Iterable[DecidedCall]) -> ContextState:
    """Return the context after these calls were decided, with the called tools that only read and the pinned ones."""
    context = run.context
    if run.limits.context is None:
        return context
    reading = {
        decided.tool_name for decided in calls if decided.effect == "readOnly" and decided.kind not in LOOP_KINDS
    }
    pinned = {decided.tool_name for decided in calls if decided.pin}
    if reading <= context.read_only and pinned <= context.pinned:
        return context
    return replace(context, read_only=context.read_only | reading, pinned=context.pinned | pinned)


def context_of_request(run: Run, tools_digest: str | None, *, has_new_guidance: bool) -> ContextState:
    """Return the context while a generation is requested. New guidance makes earlier counts useless."""
    counted = None if has_new_guidance else run.context.counted
    return replace(run.context, sending=RequestSize(len(run.messages), tools_digest), counted=counted)


def context_after_generation(run: Run, usage: Usage, window: int | None, *, is_one_pass: bool = True) -> ContextState:
    """Return the context after a generation, which has fitted; `window`: its size, if known and new.

    If the provider has run tools in between, the model has read the context once for each pass, and the usage is the
    sum of all passes: it does not tell how full the context is.
    """
    context = run.context
    sent = context.sending if usage.input_tokens > 0 and is_one_pass else None
    counted = context.counted if sent is None else replace(sent, tokens=usage.input_tokens)
    tokens = (
        usage.total_tokens if is_one_pass else min(usage.total_tokens, next_request_tokens(run) + usage.output_tokens)
    )
    context = replace(context, window=window or context.window, tokens=tokens, counted=counted)
    if context.sending is not None:
        fitted = run.messages.tokens(context.sending.messages)
        context = replace(context, fitted=max(context.fitted, fitted))
    if run.limits.context is None:
        return context
    freed, overhead = context.freed, context.overhead
    if sent is not None:
        freed = 0
        if not overhead:
            texts = estimated_tokens(len(run.instruction.encode(errors="replace")))
            overhead = max(1, texts, usage.input_tokens - run.messages.tokens(sent.messages))
    return replace(context, freed=freed, overhead=overhead, overflow=None, is_relieved=False)
