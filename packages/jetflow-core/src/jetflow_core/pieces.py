"""Text of a token sequence as it grows: three ways, each equal to decoding the whole sequence.

What a later token can still change is known exactly for two families of tokenizers:

- byte-level: a token is a fixed string of bytes, and only an unfinished UTF-8 character is open;
- piecewise: a token is a fixed string, except that the first one may lose a leading space and
  that neighbouring byte tokens (`<0x0A>`) are decoded together, so only such a run is open.

For any other tokenizer nothing is certain before the end, and nothing is handed out before it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer


class TextDecoder(Protocol):
    """The part of a tokenizer that turns ids into text (transformers and tokenizers have it)."""

    def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool = ...) -> str:
        """The text of `ids`."""


class Pieces(Protocol):
    """The growing text; `push` results, then `pending` last, are the text of all ids so far."""

    incremental: bool
    """False if everything stays pending until the end."""

    def push(self, token: int) -> str:
        """The text that `token` makes final: no later token can change it."""

    def pending(self) -> str:
        """The text after the final one if no further token came."""


def pieces_of(tokenizer: TextDecoder) -> Pieces:
    """A fresh, empty `Pieces` for one answer, of the fastest kind that is exact for `tokenizer`."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer) or _cleans_up_spaces(tokenizer, backend):
        return WholeText(tokenizer)
    chain = _decoder_chain(backend)
    if [step["type"] for step in chain] == ["ByteLevel"]:
        return BytePieces(backend)
    if _is_piecewise(chain):
        return RunPieces(backend)
    return WholeText(tokenizer)


class BytePieces:
    """Byte-level tokenizers: the bytes of the tokens one after the other, read as UTF-8."""

    incremental = True

    def __init__(self, backend: Tokenizer) -> None:
        self._vocabulary = _Vocabulary(backend)
        # Replaces what is no UTF-8 by one U+FFFD for each longest beginning of a character, which
        # is also the rule of the tokenizers library.
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The characters that `token` completes."""
        piece = self._vocabulary.piece(token)
        return "" if piece is None else self._utf8.decode(_piece_bytes(piece))

    def pending(self) -> str:
        """U+FFFD for the bytes at the end that are not yet a character, if there are any."""
        unfinished = self._utf8.getstate()[0]
        return unfinished.decode("utf-8", "replace")


class RunPieces:
    """Tokenizers of independent pieces with runs of byte tokens (SentencePiece and its like)."""

    incremental = True

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._vocabulary = _Vocabulary(backend)
        self._anchor, self._anchor_text = self._vocabulary.anchor()
        self._run: list[int] = []
        self._at_start = True

    def push(self, token: int) -> str:
        """The text of the run of bytes that `token` ends, and its own; nothing if it is a byte."""
        piece = self._vocabulary.piece(token)
        if piece is None:
            return ""
        if _BYTE_PIECE.fullmatch(piece):
            self._run.append(token)
            return ""
        final = self._end_run()
        final += self._text([token])
        self._at_start = False
        return final

    def pending(self) -> str:
        """The text of the open run of byte tokens: one more byte may make all of it invalid."""
        return self._text(self._run)

    def _end_run(self) -> str:
        text = self._text(self._run)
        self._at_start = self._at_start and not self._run
        self._run = []
        return text

    def _text(self, group: list[int]) -> str:
        if not group:
            return ""
        if self._at_start:
            return _decode(self._backend, group)
        # Only the first piece of a text is treated differently, so another one goes before.
        text = _decode(self._backend, [self._anchor, *group])
        assert text.startswith(self._anchor_text)
        return text[len(self._anchor_text) :]


class WholeText:
    """Any tokenizer: decodes everything each time it is asked, and is certain of nothing before."""

    incremental = False

    def __init__(self, tokenizer: TextDecoder) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []

    def push(self, token: int) -> str:
        """Nothing."""
        self._ids.append(token)
        return ""

    def pending(self) -> str:
        """The text of all tokens; costs as much as they are many."""
        return _decode(self._tokenizer, self._ids)


class _Vocabulary:
    """The pieces of a tokenizer by id, without those that decoding skips."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder().values()
        self._special = {token.content for token in added if token.special}

    def piece(self, token: int) -> str | None:
        """The piece of `token`; None for special tokens and ids that name none."""
        piece = self._backend.id_to_token(token)
        return None if piece in self._special else piece

    def anchor(self) -> tuple[int, str]:
        """An ordinary token that has a text of its own, and that text at the start."""
        for token in range(self._backend.get_vocab_size(with_added_tokens=True)):
            piece = self.piece(token)
            if piece is not None and not _BYTE_PIECE.fullmatch(piece):
                text = _decode(self._backend, [token])
                if text:
                    return token, text
        raise ValueError("the tokenizer has no ordinary token with a text of its own")


_BYTE_PIECE = re.compile("<0x[0-9A-Fa-f]{2}>")


def _decode(tokenizer: TextDecoder, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _piece_bytes(piece: str) -> bytes:
    # An added token is written as it is read, unless all its characters are of the alphabet.
    if all(character in _BYTES for character in piece):
        return bytes(_BYTES[character] for character in piece)
    return piece.encode()


def _cleans_up_spaces(tokenizer: Any, backend: Tokenizer) -> bool:
    """Whether transformers edits the decoded text as a whole; it leaves BPE alone unless forced."""
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return False
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    return type(backend.model).__name__ != "BPE" or bool(getattr(tokenizer, forced, False))


def _decoder_chain(backend: Tokenizer) -> list[dict[str, Any]]:
    """The steps of the tokenizer's decoder, as its JSON names them."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _is_piecewise(chain: list[dict[str, Any]]) -> bool:
    """Whether each step works on single pieces, on byte runs, or on the first piece alone."""
    fused = False
    for step in chain:
        kind = step["type"]
        if kind == "Fuse":
            fused = True
        elif fused and not (kind == "Strip" and step["start"] <= 1 and step["stop"] == 0):
            return False
        elif kind not in {"Replace", "ByteFallback", "Metaspace", "Strip"}:
            return False
    return True
