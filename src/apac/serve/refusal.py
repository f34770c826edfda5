"""A request that is not answered: a status and one fixed sentence."""

from __future__ import annotations


class Refusal(Exception):
    """Becomes the response {"error": sentence}. Sentences contain no exceptions, paths or text of the request."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def bad_request(sentence: str) -> Refusal:
    return Refusal(400, sentence)


def unavailable(sentence: str, *, retry_after: int = 1) -> Refusal:
    return Refusal(503, sentence, retry_after=retry_after)
