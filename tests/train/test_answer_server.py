"""A server answers in place of the target: the same data, or a refusal that names it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.cli import run_app
from jetflow_train import answer_server
from jetflow_train.answer_server import AnswerServer, ServerError
from jetflow_train.answering import AnswerSettings, Question, answers
from jetflow_train.cli import build
from jetflow_train.prompts import PromptSet
from jetflow_train.regenerate import RegenerateConfig, regenerate
from jetflow_train.shards import DataMismatchError, load_corpus, read_manifest
from jetflow_train.target import FrozenTarget, from_model

STOP = 5
CONFIG = RegenerateConfig(temperatures=(0.0,), max_new_tokens=20, rows=3, shard_rows=4)
NEUTRAL = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class Fake:
    """What vLLM's completions endpoint does, as far as it is asked: one target, greedily."""

    def __init__(self, target: FrozenTarget, names: tuple[str, ...] = ("it",)) -> None:
        self.target, self.names = target, names
        self.asked: list[dict[str, Any]] = []
        self.drop_first = 0
        self.without_ids = False
        self._lock = threading.Lock()

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.asked.append(body)
        prompt = np.asarray(body["prompt"])
        settings = AnswerSettings(max_new_tokens=body["max_tokens"], rows=1)
        question = [(0, Question(prompt=0, temperature=0.0))]
        (found,) = answers(self.target, [prompt], question, settings, len(prompt))
        ids = None if self.without_ids else found.tokens.tolist()
        reason = "stop" if found.finished else "length"
        return {"choices": [{"token_ids": ids, "finish_reason": reason}]}

    def lost(self) -> bool:
        """Whether this request is dropped without an answer."""
        with self._lock:
            self.drop_first -= 1
            return self.drop_first >= 0


@contextmanager
def served(fake: Fake) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _say(self, code: int, value: Any) -> None:
            text = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self._say(200, {"data": [{"id": name} for name in fake.names]})

        def do_POST(self) -> None:
            assert self.path == "/v1/completions"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if fake.lost():
                self.close_connection = True
            elif body["model"] not in fake.names:
                self._say(404, {"error": f"no model {body['model']}"})
            else:
                self._say(200, fake.completion(body))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def target(tiny_model: Callable[..., Any]) -> FrozenTarget:
    return _target(tiny_model, "qwen3")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_server, "PAUSE", 0.0)


def _target(tiny_model: Callable[..., Any], kind: str) -> FrozenTarget:
    model = tiny_model(kind, eos_token_id=STOP)
    model.generation_config.eos_token_id = STOP
    return from_model(model, torch.device("cpu"))


def _prompts(count: int = 10) -> PromptSet:
    rng = np.random.default_rng(0)
    tokens = [rng.integers(6, 128, size=int(n)) for n in rng.integers(1, 12, size=count)]
    return PromptSet(tokens=tokens, provenance={"files": {"p": "0"}})


def _quiet(text: str) -> None:
    assert text


def test_the_data_is_that_of_the_target_itself(target: FrozenTarget, tmp_path: Path) -> None:
    fake, told = Fake(target), []
    regenerate(target, _prompts(), tmp_path / "own", CONFIG, report=_quiet)
    with served(fake) as url:
        server = AnswerServer(url=url)
        found = regenerate(
            target, _prompts(), tmp_path / "out", CONFIG, server=server, report=told.append
        )
    assert f"{url} answers as it, and holds this target" in told
    assert found["complete"] and found["answered_by"] == "server"
    mine, own = (load_corpus([tmp_path / name], target.fingerprint) for name in ("out", "own"))
    assert mine.tokens.tolist() == own.tokens.tolist()
    assert mine.prompt_len.tolist() == own.prompt_len.tolist()
    assert mine.finished.tolist() == own.finished.tolist()
    # Nothing that a server may have as its default can change what the target says.
    for body in fake.asked:
        assert body.items() >= NEUTRAL.items()
        assert body["stop_token_ids"] == [STOP] and body["return_token_ids"] is True
    assert len({body["seed"] for body in fake.asked[1:]}) == 10


def test_a_killed_run_goes_on_and_lost_requests_are_asked_again(
    target: FrozenTarget, tmp_path: Path
) -> None:
    fake = Fake(target)
    regenerate(target, _prompts(), tmp_path / "own", CONFIG, report=_quiet)
    with served(fake) as url:
        server = AnswerServer(url=url)
        cut = regenerate(
            target, _prompts(), tmp_path / "out", CONFIG, server=server, max_seconds=1e-9,
            report=_quiet,
        )  # fmt: skip
        assert not cut["complete"]
        fake.drop_first = answer_server.TRIES - 1
        before = len(fake.asked)
        regenerate(target, _prompts(), tmp_path / "out", CONFIG, server=server, report=_quiet)
    assert read_manifest(tmp_path / "out")["complete"]  # type: ignore[index]  # it is there
    assert fake.drop_first < 0 and len(fake.asked) > before
    mine, own = (load_corpus([tmp_path / name], target.fingerprint) for name in ("out", "own"))
    assert mine.tokens.tolist() == own.tokens.tolist()


def test_a_server_with_another_model_is_refused(
    target: FrozenTarget, tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    with served(Fake(_target(tiny_model, "llama"))) as url:
        with pytest.raises(ServerError, match=rf"{url} does not hold this target: of \d+ tokens"):
            regenerate(
                target, _prompts(), tmp_path / "out", CONFIG, server=AnswerServer(url=url),
                report=_quiet,
            )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_what_a_server_cannot_do_is_told(target: FrozenTarget, tmp_path: Path) -> None:
    def go(server: AnswerServer) -> None:
        regenerate(target, _prompts(), tmp_path, CONFIG, server=server, report=_quiet)

    fake = Fake(target, ("one", "two"))
    with served(fake) as url:
        with pytest.raises(ServerError, match="serves one, two: say which with --model"):
            go(AnswerServer(url=url))
        with pytest.raises(ServerError, match=r'answers 404: \{"error": "no model three"\}'):
            go(AnswerServer(url=url, model="three"))
        fake.without_ids = True
        with pytest.raises(ServerError, match=r"gives no token ids; vLLM does from 0\.10\.2 on"):
            go(AnswerServer(url=url, model="two"))
    with pytest.raises(ServerError, match=f"the server {url} cannot be reached: "):
        go(AnswerServer(url=url, model="two"))
    assert not list(tmp_path.iterdir())


def test_own_answers_and_a_server_s_are_not_mixed(target: FrozenTarget, tmp_path: Path) -> None:
    regenerate(target, _prompts(), tmp_path, CONFIG, max_seconds=1e-9, report=_quiet)
    with served(Fake(target)) as url, pytest.raises(DataMismatchError, match="answered_by"):
        regenerate(
            target, _prompts(), tmp_path, CONFIG, server=AnswerServer(url=url), report=_quiet
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "it"], "--model it is the name of the target on a --server; there is none"),
        (["--server", "host:80"], "server 'host:80' is out of range: http://HOST:PORT"),
        (["--server", "http://host", "--compile"], "--compile is for the target in this process"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["data", "regenerate", "--prompts", "p.jsonl", "--out", str(tmp_path / "out"), *words]
    assert run_app(build(), line, name="jetflow-train") == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
