"""Requests -> prompt rows: the turn grammar of MOSS-Speech, `<|im_start|>{role}
` content
`<|im_end|>
`.

Every piece is tokenised on its own and special tokens are put in by id, so what a visitor types
stays text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from moss_engine.api.errors import (
    CheckpointError,
    InputError,
    ParameterError,
    TextEmptyError,
    UnsupportedModeError,
)
from moss_engine.api.modes import Mode
from moss_engine.api.request import (
    Content,
    Message,
    Reply,
    Request,
    Sampling,
    Speech,
    Text,
    check_text,
    check_values,
)
from moss_engine.api.tokens import Row, Segment, is_audio_row, is_stop, speech_rows, text_rows
from moss_engine.models.config import ModelConfig
from moss_engine.text.language import LANGUAGES, said
from moss_engine.text.modes import (
    PUBLISHED_MODES,
    PUBLISHED_SAMPLING,
    Modes,
    Pauses,
    read_default_sampling,
    read_modes,
    token_ids,
)
from moss_engine.text.spoken.text import as_sentence, split_sentences
from moss_engine.text.tokenizer import TextDecoder, TextTokenizer

_BLANK_LINE = re.compile(r"\r?\n[^\S\n]*\r?\n\s*")


@dataclass(frozen=True)
class Part:
    """A sentence, or a part of a long one, and the codes of silence before it. `goes_on`: the next
    part is the rest of the same sentence, which has no capital there as it is written."""

    text: str
    silence: tuple[int, ...] = ()
    goes_on: bool = False


def parts_to_read(text: str, limits: Modes, mode: Mode, speed: float) -> list[Part]:
    """The parts of a text, each of at most `segment_chars` characters, in order; in their spoken
    form where the mode spells out. A text without anything to say has none."""
    paragraphs = _BLANK_LINE.split(text.strip())
    parts: list[Part] = []
    for paragraph in filter(None, (said(mode, paragraph) for paragraph in paragraphs)):
        sentences = split_sentences(paragraph, limits.segment_chars - 1)
        for index, sentence in enumerate(sentences):
            ends = index + 1 == len(sentences)
            codes = _pause(limits.pauses, speed, opens=not index, before=parts[-1:])
            text = _marked(sentence, ends) if mode.spell_out else sentence
            goes_on = not ends and text[-1] not in ".?!" and sentences[index + 1][0].islower()
            parts.append(Part(text, codes, goes_on))
    return parts


def _marked(sentence: str, ends: bool) -> str:
    """With a comma at its end, if the sentence goes on in the next part."""
    return as_sentence(sentence if ends or sentence[-1] in ".?!,;:" else f"{sentence},")


def _pause(
    pauses: Pauses | None, speed: float, *, opens: bool, before: list[Part]
) -> tuple[int, ...]:
    """The silence before a part, which may open a paragraph. Parts of one sentence have none beyond
    that of their punctuation; at a higher speed pauses are shorter."""
    if pauses is None or not before or not (opens or before[0].text[-1] in ".?!"):
        return ()
    codes = pauses.paragraph if opens else pauses.sentence
    return (pauses.code,) * round(codes / max(1.0, speed))


IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
AGAIN = "use files of one checkpoint."
PUBLISHED_SOSP = "<|object_ref_start|>"


FRAMES = 16
"""Texts of the turn template, whose ids are cached."""


class Processor:
    """Checks requests and writes their prompts. Its methods may be called from any thread.

    `modes` and `speakers` are what the checkpoint offers, `default_sampling` its own values.
    Raises CheckpointError where the tokenizer lacks a token of the speakers.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        config: ModelConfig,
        modes: Modes,
        default_sampling: Sampling,
        max_text_chars: int,
    ):
        self.ids = config.special
        self.modes = modes.modes
        self.default_mode = modes.default
        self.default_sampling = default_sampling
        self.speakers = modes.speakers
        self.silent_lead_s = modes.silent_lead_s
        self._limits = modes
        if modes.pauses and modes.pauses.code >= self.ids.num_codes:
            raise CheckpointError(f"The code of silence, {modes.pauses.code}, is none; {AGAIN}")
        unknown = {mode.language for mode in modes.modes} - set(LANGUAGES)
        if unknown:
            raise CheckpointError(
                f"processor_config.json has modes in {', '.join(sorted(unknown))}, of which "
                f"nothing is known here; choose among {', '.join(LANGUAGES)}."
            )
        self._speaker_ids = token_ids(modes.speakers, tokenizer.special_ids)
        self._tokenizer = tokenizer
        self._frame = lru_cache(maxsize=FRAMES)(self._encode)
        self._max_text_chars = max_text_chars
        self._vocab_sizes = Row(config.vocab_size, config.audio_vocab_size)

    def mode(self, request: Request) -> Mode:
        for mode in self.modes:
            if mode.name == request.mode:
                return mode
        raise UnsupportedModeError(
            f"This checkpoint has no mode {str(request.mode)[:40]!r}; choose one of "
            f"{', '.join(mode.name for mode in self.modes)}."
        )

    def speaks(self, request: Request) -> bool:
        """Whether the reply is to be heard."""
        return self.mode(request).output == "speech"

    def open_text_decoder(self) -> TextDecoder:
        return self._tokenizer.open_decoder()

    def pieces(self) -> tuple[str, ...]:
        """What each text id stands for, for display; bytes that are no complete character are
        U+FFFD."""
        return tuple(self._tokenizer.piece(text_id) for text_id in range(self._vocab_sizes.text))

    def prepare(self, request: Request) -> tuple[Segment, ...]:
        """The prompts of a request and how long the reply to each may get.

        Raises an InputError that says what is wrong with the request.
        """
        check_values(request)
        mode = self.mode(request)
        tokens = self.speakers.tokens(request.voice, request.speed)
        speaker = tuple(self._speaker_ids[token] for token in tokens)
        self._check_order(mode, request.messages)
        for message in request.messages:
            self._check_content(message)
        if not mode.split_sentences:
            used = request.messages if mode.history else request.messages[-1:]
            messages = tuple(Message(m.role, _readable(mode, m)) for m in used)
            return (Segment(self.prompt(mode, messages, speaker), request.sampling.max_rows),)
        last = request.messages[-1].content
        assert isinstance(last, Text)
        parts = parts_to_read(last.text, self._limits, mode, request.speed)
        if not parts:
            raise _nothing_to_say()
        # Many tiny sentences have as many rows in all as the same characters in one.
        in_all = self._limits.min_cap_rows + self._cap(
            "".join(p.text for p in parts), request.speed
        )
        return tuple(self._read(mode, part, request, speaker, in_all) for part in parts)

    def _read(
        self, mode: Mode, part: Part, request: Request, speaker: tuple[int, ...], in_all: int
    ) -> Segment:
        """A sentence that is read out: the reply may write its words only."""
        ids = self._encode(part.text)
        prompt = self._prompt(mode, [("user", text_rows(ids, self.ids))], speaker)
        most = min(request.sampling.max_rows, self._cap(part.text, request.speed))
        words = self._words(ids)
        return Segment(prompt, most, words, in_all, part.silence, part.goes_on)

    def _words(self, ids: list[int]) -> tuple[tuple[int, ...], ...]:
        """A text's ids, word by word; each word includes the space before it."""
        words: list[list[int]] = []
        for text_id in ids:
            if not words or self._tokenizer.piece(text_id).startswith(" "):
                words.append([])
            words[-1].append(text_id)
        return tuple(map(tuple, words))

    def prompt(
        self, mode: Mode, messages: tuple[Message, ...], speaker: tuple[int, ...] = ()
    ) -> tuple[Row, ...]:
        """The rows of a conversation, its texts as the network reads them, up to where the reply
        begins. `speaker`: the ids of voice and speaking rate, at the end of the system turn."""
        turns = [(message.role, self._content(message.content)) for message in messages]
        return self._prompt(mode, turns, speaker)

    def _prompt(
        self, mode: Mode, turns: list[tuple[str, list[Row]]], speaker: tuple[int, ...]
    ) -> tuple[Row, ...]:
        if turns[0][0] != "system":
            turns = [("system", self._system(mode)), *turns]
        turns[0] = ("system", [*turns[0][1], *text_rows(speaker, self.ids)])
        rows = list[Row]()
        for role, content in turns:
            rows += [*self._header(role), *content, *self._end_of_turn()]
        rows += self._header("assistant")
        if mode.opens_speech:
            rows.append(Row(self.ids.sosp, self.ids.audio_pad))
        return tuple(rows)

    def _check_order(self, mode: Mode, messages: tuple[Message, ...]) -> None:
        if not messages or messages[-1].role != "user":
            raise InputError("The conversation does not end with a message of the user; add one.")
        if any(message.role == "system" for message in messages[1:]):
            raise InputError(
                "Only the first message of a conversation may be the system's; remove the others."
            )
        given = "text" if isinstance(messages[-1].content, Text) else "speech"
        if given != mode.input or isinstance(messages[-1].content, Reply):
            raise UnsupportedModeError(
                f"The mode {mode.name!r} takes {mode.input}; choose another mode."
            )

    def _check_content(self, message: Message) -> None:
        content = message.content
        if message.role == "system" and not isinstance(content, Text):
            raise InputError("The system message is not a text; send it as one.")
        if isinstance(content, Text):
            check_text(content.text, self._max_text_chars)
        elif isinstance(content, Speech):
            if not content.codes:
                raise InputError("The recording holds no speech; record it again.")
            if not all(
                type(code) is int and 0 <= code < self.ids.num_codes for code in content.codes
            ):
                raise ParameterError(
                    f"codes must be whole numbers from 0 to {self.ids.num_codes - 1}."
                )
        elif message.role != "assistant" or not all(self._is_row(row) for row in content.rows):
            raise InputError(
                "An earlier reply is not one that this checkpoint made; start a new conversation."
            )

    def _is_row(self, row: Row) -> bool:
        return all(
            type(value) is int and 0 <= value < size
            for value, size in zip(row, self._vocab_sizes, strict=True)
        )

    def _cap(self, sentence: str, speed: float) -> int:
        """The most rows that speaking a sentence can take, so that no reply goes on for ever."""
        rows_per_char = self._limits.max_rows_per_char / min(1.0, speed)
        return max(self._limits.min_cap_rows, math.ceil(len(sentence) * rows_per_char))

    def _system(self, mode: Mode) -> list[Row]:
        special_id = self._tokenizer.special_ids.get(mode.system)
        return text_rows(self._frame(mode.system) if special_id is None else [special_id], self.ids)

    def _content(self, content: Content) -> list[Row]:
        if isinstance(content, Text):
            return text_rows(self._encode(content.text), self.ids)
        if isinstance(content, Speech):
            return speech_rows(content.codes, self.ids)
        return self._reply(content)

    def _reply(self, reply: Reply) -> list[Row]:
        """An earlier answer as it stands in the grid, whole even if it was stopped half-way, and
        without the audio that was sampled beside its text, which the penalty would count."""
        rows = [
            row if is_audio_row(row, self.ids) else Row(row.text, self.ids.audio_pad)
            for row in reply.rows
            if not is_stop(row, self.ids)  # every turn is closed in the same way
        ]
        if rows and is_audio_row(rows[0], self.ids):  # its prompt ended with sosp
            rows.insert(0, Row(self.ids.sosp, self.ids.audio_pad))
        if rows and is_audio_row(rows[-1], self.ids) and rows[-1].audio != self.ids.eosp:
            rows.append(Row(self.ids.modality_pad, self.ids.eosp))
        return rows

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text)
        controls = {self.ids.sosp, self.ids.modality_pad, self.ids.im_end, self.ids.text_pad}
        assert not controls & set(ids), "a text was encoded as a control id"
        return ids

    def _header(self, role: str) -> list[Row]:
        return text_rows(
            [self._tokenizer.special_ids[IM_START], *self._frame(f"{role}\n")], self.ids
        )

    def _end_of_turn(self) -> list[Row]:
        return text_rows([self.ids.im_end, *self._frame("\n")], self.ids)


def _readable(mode: Mode, message: Message) -> Content:
    """The content as the network reads it, typed text without surrounding space; raises
    TextEmptyError if nothing is left to read."""
    content = message.content
    if not isinstance(content, Text):
        return content
    text = content.text.strip() if message.role == "user" else content.text
    words = said(mode, text)
    if not words:
        raise _nothing_to_say()
    return Text(words)


def _nothing_to_say() -> TextEmptyError:
    return TextEmptyError("Nothing in this text can be spoken; type a word or a number.")


def load_processor(folder: Path, config: ModelConfig, max_text_chars: int) -> Processor:
    """The processor of a checkpoint folder; raises CheckpointError where its files do not belong
    together.

    The published checkpoint keeps its turn template in code: it is told by its tokenizer, and gets
    PUBLISHED_MODES.
    """
    path = folder / "tokenizer.json"
    tokenizer = TextTokenizer.from_file(path)
    for token, wanted in ((IM_START, None), (IM_END, config.eos_token_id)):
        found = tokenizer.special_ids.get(token)
        if found is None or wanted not in (None, found):
            said = f"{path} gives {token} the id {found}, config.json {wanted}"
            raise CheckpointError(f"{said}; {AGAIN}")
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{path} has {tokenizer.vocab_size} ids, the network {config.vocab_size}; {AGAIN}"
        )
    if tokenizer.special_ids.get(PUBLISHED_SOSP) == config.sosp_token_id:
        pad = tokenizer.special_ids.get(END_OF_TEXT, config.pad_token_id)
        if pad != config.pad_token_id:
            raise CheckpointError(
                f"{path} gives {END_OF_TEXT} another id than config.json; {AGAIN}"
            )
        return Processor(tokenizer, config, PUBLISHED_MODES, PUBLISHED_SAMPLING, max_text_chars)
    return Processor(
        tokenizer,
        config,
        read_modes(folder / "processor_config.json"),
        read_default_sampling(folder / "generation_config.json"),
        max_text_chars,
    )
