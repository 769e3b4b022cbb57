from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.pieces import BytePieces, RunPieces, WholeText, pieces_of
from jetflow_core.text import TextStream
from tokenizers import AddedToken, Tokenizer, decoders, models

# Tokens of one to three bytes: letters that make up stop strings, whole and broken characters,
# bytes that are never UTF-8, and the surrogates and overlong forms decoders disagree about.
BYTE_TOKENS = [
    *(bytes([byte]) for byte in b"abc \n"),
    *(
        bytes([byte])
        for byte in b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xed\xa0\xe0\xf4\x90\xc0"
    ),
    b"ab",
    b"bc",
    b"abc",
    b" a",
    "é".encode(),
    "€".encode(),
    b"a\xe2",
    b"\x82\xacb",
    b"\x80\xc3",
    b"\xa9\xf0\x9f",
    b"b\xff",
]


def _alphabet() -> dict[int, str]:
    import jetflow_core.pieces as module

    return {byte: character for character, byte in module._BYTES.items()}


def byte_level() -> Tokenizer:
    letters = _alphabet()
    vocabulary = {"".join(letters[b] for b in piece): i for i, piece in enumerate(BYTE_TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<x y>"), AddedToken("ê"), AddedToken("日本")])
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def sentence_pieces(decoder: decoders.Decoder) -> Tokenizer:
    pieces = [
        "▁", "▁a", "a", "b", "bc", "▁▁b", "c▁", "\ufffd",
        *(f"<0x{byte:02X}>" for byte in b"\xc3\xa9\xe2\x82\xac\xff\x0aab"),
    ]  # fmt: skip
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.decoder = decoder
    tokenizer.add_tokens([AddedToken("<x y>")])
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def llama_like() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentence_pieces(decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)]))


def gemma_like() -> Tokenizer:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentence_pieces(decoders.Sequence(steps))


def metaspace() -> Tokenizer:
    return sentence_pieces(decoders.Metaspace())


def joined_with_spaces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "abc": 2}, "a"))
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "##b": 1, "c": 2, ".": 3, "'": 4}, "a"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


KINDS: dict[Callable[[], Tokenizer], type] = {
    byte_level: BytePieces,
    llama_like: RunPieces,
    gemma_like: RunPieces,
    metaspace: RunPieces,
    joined_with_spaces: RunPieces,
    word_pieces: WholeText,
}
TOKENIZERS = {make.__name__: make() for make in KINDS}
STOPS = ["a", "ab", "abc", "bca", "bb", "é", "€b", " a", "\n", "aaa", "a b"]


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True)


def reference(
    tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str], min_new_tokens: int
) -> tuple[str, int | None]:
    """Decodes every prefix anew. The text, and after how many tokens it stopped."""
    early = decode(tokenizer, ids[: max(0, min_new_tokens - 1)]).rstrip("\ufffd")
    for size in range(max(1, min_new_tokens), len(ids) + 1):
        text = decode(tokenizer, ids[:size])
        places = [
            place
            for word in stop
            for place in range(len(text))
            if text.startswith(word, place) and place + len(word) > len(early)
        ]
        if places:
            return text[: min(places)], size
    return decode(tokenizer, ids), None


@pytest.mark.parametrize("name", TOKENIZERS)
def test_each_tokenizer_gets_the_kind_that_is_exact_for_it(name: str) -> None:
    kind = {make.__name__: kind for make, kind in KINDS.items()}[name]
    assert type(pieces_of(TOKENIZERS[name])) is kind
    assert TextStream(TOKENIZERS[name]).incremental == (kind is not WholeText)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=120)
@given(data=st.data())
def test_streamed_text_is_the_decoded_text_cut_before_the_first_stop(
    name: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[name]
    # Two ids past the end of the vocabulary: a model's logits are often padded.
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() + 1), max_size=16))
    stop = data.draw(st.lists(st.sampled_from(STOPS), max_size=3))
    least = data.draw(st.integers(0, 6))
    stream = TextStream(tokenizer, stop, least)
    shown, stopped_after = "", None
    for size, token in enumerate(ids, 1):
        shown += stream.push(token)
        # At a stop the text is final, whatever ids would have changed it afterwards.
        if not stream.stopped:
            assert decode(tokenizer, ids).startswith(shown), "text was shown and then changed"
        if stream.stopped and stopped_after is None:
            stopped_after = size
            assert stream.stop_string in stop
    shown += stream.flush()
    assert (shown, stopped_after) == reference(tokenizer, ids, stop, least)
    assert stream.flush() == ""


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_chunking_gives_the_same_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=24))
    sizes = data.draw(st.lists(st.integers(0, 7), max_size=24))
    stop = data.draw(st.lists(st.sampled_from(STOPS), max_size=2))
    one_by_one, in_chunks = TextStream(tokenizer, stop), TextStream(tokenizer, stop)
    ends = [0, *(min(end, len(ids)) for end in accumulate(sizes)), len(ids)]
    parts = [in_chunks.extend(ids[start:end]) for start, end in pairwise(ends)]
    wanted = one_by_one.extend(ids)
    assert "".join(parts) == wanted
    assert in_chunks.flush() == one_by_one.flush()
    assert in_chunks.stop_string == one_by_one.stop_string


def all_bytes() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in _alphabet().items()}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


# The bytes at which the rules of UTF-8 change.
EDGES = [0x00, 0x61, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1,
         0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]  # fmt: skip


@settings(deadline=None, max_examples=400)
@given(ids=st.lists(st.sampled_from(EDGES), min_size=1, max_size=6))
def test_broken_utf8_is_replaced_as_the_tokenizers_library_does(ids: list[int]) -> None:
    tokenizer = BYTES
    stream = TextStream(tokenizer)
    shown = ""
    for size, token in enumerate(ids, 1):
        shown += stream.push(token)
        assert shown + stream._pieces.pending() == decode(tokenizer, ids[:size])
    assert shown + stream.flush() == decode(tokenizer, ids)


BYTES = all_bytes()


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, len(BYTE_TOKENS)), max_size=24), stop=st.sampled_from(STOPS))
def test_no_more_is_held_back_than_must_be(ids: list[int], stop: str) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    free, watching = TextStream(tokenizer), TextStream(tokenizer, [stop])
    shown = watched = ""
    for size, token in enumerate(ids, 1):
        shown += free.push(token)
        watched += watching.push(token)
        unfinished = decode(tokenizer, ids[:size]).removeprefix(shown)
        assert unfinished in ("", "\ufffd", "\ufffd\ufffd")
        if not watching.stopped:
            held = shown.removeprefix(watched)
            assert len(held) < len(stop) and stop.startswith(held)


def ids_of(tokenizer: Tokenizer, *pieces: bytes) -> list[int]:
    return [BYTE_TOKENS.index(piece) for piece in pieces]


def test_a_character_is_shown_when_its_last_byte_came() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    stream = TextStream(tokenizer)
    parts = [stream.push(i) for i in ids_of(tokenizer, b"a\xe2", b"\x82\xacb", b"\xe2", b"a")]
    assert parts == ["a", "€b", "", "\ufffda"]
    assert stream.push(ids_of(tokenizer, b"\xf0")[0]) == ""
    assert stream.flush() == "\ufffd"


def test_a_stop_string_may_span_tokens_and_end_within_one() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    stream = TextStream(tokenizer, ["caab"])
    parts = [stream.push(i) for i in ids_of(tokenizer, b"bc", b"a", b"abc")]
    assert parts == ["b", "", ""] and stream.stopped and stream.stop_string == "caab"
    assert stream.push(0) == "" and stream.flush() == ""


def test_text_that_only_looked_like_a_stop_string_is_let_go() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    stream = TextStream(tokenizer, ["aab"])
    assert [stream.push(i) for i in ids_of(tokenizer, b"a", b"a", b"a", b"c")] == [
        "", "", "a", "aac",
    ]  # fmt: skip
    assert stream.push(0) == "" and stream.flush() == "a" and not stream.stopped


def test_special_tokens_and_unknown_ids_have_no_text() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    end = tokenizer.token_to_id("<end>")
    stream = TextStream(tokenizer)
    assert stream.extend([0, end, 99_999, 1]) == "ab"


def test_of_two_stop_strings_the_earlier_place_counts() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    stream = TextStream(tokenizer, ["c", "bc", "b"])
    assert stream.extend(ids_of(tokenizer, b"abc")) == "a"
    assert stream.stop_string == "bc"


def test_a_flushed_stream_takes_no_tokens() -> None:
    stream = TextStream(TOKENIZERS["byte_level"])
    stream.flush()
    with pytest.raises(RuntimeError, match="flushed"):
        stream.push(0)


def test_a_tokenizer_without_ordinary_tokens_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0}, "<s>"))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    with pytest.raises(ValueError, match="no ordinary token"):
        TextStream(tokenizer)


def test_a_tokenizer_that_edits_the_whole_text_is_not_streamed() -> None:
    from transformers import PreTrainedTokenizerFast

    plain = PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS["llama_like"])
    assert isinstance(pieces_of(plain), RunPieces)
    words = joined_with_spaces()
    words.decoder = decoders.Metaspace()
    edited = PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=True)
    assert isinstance(pieces_of(edited), WholeText)


class Letters:
    """A tokenizer that is nothing but a decode method."""

    def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        return "".join(map(chr, ids))


def test_anything_with_decode_works_at_the_end() -> None:
    stream = TextStream(Letters(), ["stop"])
    assert not stream.incremental
    assert stream.extend(map(ord, "it sto")) == "" and not stream.stopped
    assert stream.extend(map(ord, "ps here")) == "it " and stream.stopped
    free = TextStream(Letters())
    assert free.extend(map(ord, "abc")) == "" and free.flush() == "abc"


@pytest.fixture(scope="module")
def embedded(embedded_folder: Path) -> tuple[Tokenizer, object]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    return tokenizer.backend_tokenizer, tokenizer


def test_the_embedded_tokenizer_streams_what_it_decodes(
    embedded: tuple[Tokenizer, object],
) -> None:
    backend, tokenizer = embedded
    size = backend.get_vocab_size()
    split = [i for i in range(size) if "\ufffd" in backend.decode([i])]
    assert len(split) > 100, "tokens that hold parts of characters"
    characters = backend.encode("añ中🙂日本語 𓂀 e\u0301 fin\n\n", add_special_tokens=False).ids

    @settings(deadline=None, max_examples=80)
    @given(
        ids=st.lists(
            st.integers(0, size + 5) | st.sampled_from(split) | st.sampled_from(characters),
            max_size=40,
        ),
        stop=st.lists(st.sampled_from(["e", "\n", "🙂", " the", "日本"]), max_size=2),
        least=st.integers(0, 5),
    )
    def check(ids: list[int], stop: list[str], least: int) -> None:
        stream = TextStream(tokenizer, stop, least)  # type: ignore[arg-type]
        text = stream.extend(ids) + stream.flush()
        assert text == reference(backend, ids, stop, least)[0]
        if not stop:
            assert text == tokenizer.decode(ids, skip_special_tokens=True)  # type: ignore[attr-defined]

    check()


def test_every_embedded_token_streams_alone_and_all_stream_together(
    embedded: tuple[Tokenizer, object],
) -> None:
    backend, _ = embedded
    ids = list(range(backend.get_vocab_size()))
    for token in ids[:2000] + ids[-500:]:
        stream = TextStream(backend)
        assert stream.push(token) + stream.flush() == decode(backend, [token])
    together = TextStream(backend)
    assert together.extend(ids) + together.flush() == decode(backend, ids)
