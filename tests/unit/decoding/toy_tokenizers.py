"""Small tokenizers of the two usual kinds: byte-level (GPT-2, Llama 3, Qwen), with byte tokens (Llama 2)."""

from functools import cache

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

SPECIAL = "<eos>"
PIECES = [
    "hello",
    " world",
    "EN",
    "ND",
    "D.",
    "  ",
    "日本".encode()[:4],
    "日本".encode()[4:],
    "é!".encode()[1:],
]


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Ids 0..255 are the bytes, 256.. are PIECES (some cut characters), the last is special."""
    letters = _byte_letters()
    names = [letters[byte] for byte in range(256)]
    for piece in PIECES:
        piece_bytes = piece.encode() if isinstance(piece, str) else piece
        names.append("".join(letters[byte] for byte in piece_bytes))
    return _wrap({name: index for index, name in enumerate(names)}, decoders.ByteLevel())


@cache
def with_byte_tokens() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: a marker for the space, the first space left out, ids 0..255 are the bytes."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    names += ["▁hello", "▁", "▁world", "END", "o", "▁▁"]
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap({name: index for index, name in enumerate(names)}, decoder)


def _wrap(vocab: dict[str, int], decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL)


def _byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in letters]
    letters.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    assert set(letters.values()) == set(ByteLevel.alphabet())
    return letters
