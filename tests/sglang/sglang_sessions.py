"""The ends of requests and sessions in one rank."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers import schedule_batch
from sglang.srt.managers.kv_hints import decode_kv_hints_envelope

from sglang_model import AnyPrompt, Spec, prompt, salted
from sglang_requests import request_of


class Sessions:
    """The methods of a rank that end something."""

    spec: Spec
    cache: Any

    def finish_request(
        self, number: AnyPrompt, pages: int, reason: str, actions: dict[str, Any], session: str | None = None
    ) -> None:
        """Releases a request whose prompt was inserted, as SGLang does when it has ended.

        Args:
            number: The prompt.
            pages: Its length in pages; with pairs of tokens it has one more.
            reason: The name of SGLang's reason for the end; "" if the request will go on.
            actions: The payloads of kv_hints by the type of their action.
            session: The ID of the request's session.
        """
        req = request_of(f"request-{number}", number)
        req.full_untruncated_fill_ids = prompt(salted(number).number, pages * self.spec.page + bool(self.spec.draft))
        req.finished_reason = getattr(schedule_batch, reason)("") if reason else None
        req.priority, req.session_id = None, session
        written = [
            {"action_id": "1", "action_type": name, "action_version": "1", "payload": payload}
            for name, payload in actions.items()
        ]
        req.kv_hints = decode_kv_hints_envelope({"protocol_version": "1", "message_id": "1", "actions": written})
        self.cache.on_release(req, checkpointed=True)

    def close_session(self, session: str) -> None:
        """Ends a session."""
        self.cache.release_radix_session(session)
