"""A running vLLM server that holds the target and answers in its place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

import httpx
import numpy as np
import torch
from jetflow_core.offline import Answer
from numpy.typing import NDArray

from jetflow_train.answering import AnswerSettings, Prompts, Question
from jetflow_train.target import FrozenTarget

MOST_REQUESTS = 256
"""Requests under way at once; more only wait in the server."""
TRIES, PAUSE = 4, 1.0
"""Of a request that the network lost, and seconds before the second try; each pause is doubled."""
PATIENCE = 600.0
"""Seconds for one answer: a busy server lets requests wait."""
PROBE_TOKENS, AGREE = 16, 0.9
"""Greedy tokens of a first answer, and the share of them that the target must write as well."""
_LOST = (httpx.TransportError,)


class ServerError(RuntimeError):
    """The server is away, refuses, or is not one that can answer; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerServer:
    """Where the target answers.

    Raises:
        ValueError: on construction: ``url`` is none.
    """

    url: str
    """Of the server, ``http://host:port``."""
    model: str | None = None
    """Its name for the target; None: the only one that it serves."""

    def __post_init__(self) -> None:
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"server {self.url!r} is no URL: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"server {self.url!r} is out of range: http://HOST:PORT or https://")


class ServerAnswers:
    """Answers of a server, after it has shown that it holds the target.

    Args:
        server: where it is.
        target: the model that should answer.
        prompts: token ids.
        settings: length, requests at once and seed.
        probe: a prompt that the server answers first, greedily, for comparison.

    Raises:
        ServerError: it cannot be reached, has no such model, or writes what the target would not.
    """

    def __init__(
        self,
        server: AnswerServer,
        target: FrozenTarget,
        prompts: Prompts,
        settings: AnswerSettings,
        probe: NDArray[np.int64],
    ) -> None:
        self._server, self._prompts, self._settings = server, prompts, settings
        self._stop = target.stop_tokens
        at_once = min(settings.rows, MOST_REQUESTS)
        self._client = httpx.Client(
            base_url=server.url.rstrip("/"),
            timeout=httpx.Timeout(PATIENCE, connect=10.0),
            limits=httpx.Limits(max_connections=at_once),
        )
        self._at_once = at_once
        self.model = server.model or self._only_model()
        _check_same_model(server, target, probe, self._ask(probe, 0.0, 0, PROBE_TOKENS).tokens)

    def answer(self, questions: Iterable[tuple[int, Question]]) -> Iterator[Answer]:
        """Answers as they get done; questions are taken as requests become free."""
        left = iter(questions)
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="answer") as pool:
            under_way = {self._start(pool, each) for each in islice(left, self._at_once)}
            try:
                while under_way:
                    done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    under_way |= {self._start(pool, each) for each in islice(left, len(done))}
                    for each in done:
                        yield each.result()
            finally:
                for each in under_way:
                    each.cancel()

    def _start(self, pool: ThreadPoolExecutor, numbered: tuple[int, Question]) -> Future[Answer]:
        number, question = numbered
        prompt, longest = self._prompts[question.prompt], self._settings.max_new_tokens
        return pool.submit(self._ask, prompt, question.temperature, number, longest)

    def _ask(
        self, prompt: NDArray[np.int64], temperature: float, number: int, longest: int
    ) -> Answer:
        told = self._post(
            {
                "model": self.model,
                "prompt": prompt.tolist(),
                "max_tokens": longest,
                "temperature": temperature,
                "seed": (self._settings.seed << 32) + number,
                "stop_token_ids": list(self._stop),
                "return_token_ids": True,
                # A model's generation_config.json may say otherwise.
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
            }
        )
        choice = told["choices"][0]
        if not isinstance(choice.get("token_ids"), list):
            raise ServerError(
                f"the server {self._server.url} gives no token ids; vLLM does from 0.10.2 on"
            )
        tokens = np.asarray(choice["token_ids"], dtype=np.int64)
        finished = choice.get("finish_reason") == "stop"
        if finished and not (len(tokens) and int(tokens[-1]) in self._stop):
            raise ServerError(
                f"the server {self._server.url} ended answer {number} with none of the target's "
                f"stop tokens {list(self._stop)}"
            )
        return Answer(number=number, tokens=tokens, finished=finished)

    def _only_model(self) -> str:
        names = [str(each["id"]) for each in self._request("GET", "/v1/models", None)["data"]]
        if len(names) != 1:
            raise ServerError(
                f"the server {self._server.url} serves {', '.join(names) or 'nothing'}: say which "
                "with --model"
            )
        return names[0]

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._request("POST", "/v1/completions", body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        url = self._server.url
        for attempt in range(TRIES):
            try:
                response = self._client.request(method, path, json=body)
            except _LOST as error:
                if attempt + 1 == TRIES:
                    why = str(error) or type(error).__name__
                    raise ServerError(f"the server {url} cannot be reached: {why}") from error
                time.sleep(PAUSE * 2**attempt)
                continue
            if response.status_code != httpx.codes.OK:
                said = " ".join(response.text.split())[:300]
                raise ServerError(f"the server {url} answers {response.status_code}: {said}")
            found: dict[str, Any] = response.json()
            return found
        raise AssertionError("every try returns or raises")


def _check_same_model(
    server: AnswerServer,
    target: FrozenTarget,
    probe: NDArray[np.int64],
    written: Sequence[int] | NDArray[np.int64],
) -> None:
    """A head learns from the target's own text: another model's would teach it the wrong thing."""
    text = torch.from_numpy(np.concatenate([probe, written]))[None].to(target.device)
    places = torch.arange(text.shape[1], device=target.device)
    seen = (places[:, None] >= places)[None]
    _, final = target.capture(text, places[None], seen, (0,))
    own = (final[0, len(probe) - 1 : -1] @ target.lm_head.T).argmax(-1)
    same = int((own == text[0, len(probe) :]).sum())
    if same < AGREE * len(written):
        raise ServerError(
            f"the server {server.url} does not hold this target: of {len(written)} tokens that it "
            f"wrote greedily the target would have written {same}"
        )
